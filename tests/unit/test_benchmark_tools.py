"""The tools that read benchmarks' results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bench_check
import figures
from bench import ROOT, known_programs, verdict


def reported(name, ok, failed=False):
    return {"name": name, "ok": ok, "failed": failed, "seconds": 1.0, "machine": {"date": "2026-01-01"}}


def report(path, *results):
    path.write_text(json.dumps({"machine": {}, "results": list(results)}))
    return str(path)


@pytest.mark.parametrize(
    ("quick", "full", "word", "status"),
    [
        (True, True, "agrees", 0),
        (False, False, "agrees", 0),
        (None, True, "not decided", 0),
        (None, False, "not decided", 0),
        (False, True, "contradicts", 1),
        (True, False, "contradicts", 1),
    ],
)
def test_quick_must_agree_with_the_full_run_or_not_have_decided(tmp_path, quick, full, word, status):
    command = [sys.executable, str(ROOT / "tools" / "quick_check.py")]
    files = [report(tmp_path / "q.json", reported("one", quick)), report(tmp_path / "f.json", reported("one", full))]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, found["details"]["found"]) == (status, {"one": word})


def test_a_quick_run_that_failed_or_is_missing_is_no_agreement(tmp_path):
    full = report(tmp_path / "f.json", reported("one", True), reported("two", False))
    quick = report(tmp_path / "q.json", reported("two", False, failed=True))
    command = [sys.executable, str(ROOT / "tools" / "quick_check.py"), quick, full]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, found["details"]["found"]) == (1, {"one": "missing", "two": "failed"})


def test_a_report_says_which_bars_are_not_decided():
    words = [verdict(reported("one", ok)) for ok in (True, False, None)]
    assert words == ["yes", "**no**", "not decided"]


def test_the_readmes_figures_name_what_was_missed_and_what_is_not_decided(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    about = {"processor": "p", "cores": 2, "memory_bytes": 2**30}
    results = [reported("met", True), reported("missed", False), reported("open", None)]
    path = tmp_path / "2026-01-01.json"
    path.write_text(json.dumps({"machine": about, "results": results}))
    text = figures.figures(path)
    assert "Bars that were missed: `missed`. Not decided: `open`." in text


GOOD = {"bar": "b", "ok": None, "ours": 1.0, "left_out": [], "details": {}}


@pytest.mark.parametrize(
    ("change", "status", "late", "problem"),
    [
        ({}, 0, False, None),
        ({"ours": None, "left_out": ["network namespaces need root"]}, 0, False, None),
        ({"ours": None}, 0, False, "measured nothing"),
        ({"ok": False, "details": {"error": "w0 ended\nTraceback"}}, 1, False, "w0 ended"),
        ({"ok": False}, 1, False, "something is wrong that must hold at any size"),
        ({"ok": True}, 0, False, "claims that its bar is met, at a size that decides nothing"),
        ({}, 1, False, "ended with 1"),
        ({}, -9, True, "did not end within 600 s"),
    ],
)
def test_a_check_finds_what_is_wrong_with_a_programs_end(change, status, late, problem):
    assert bench_check.judge(GOOD | change, status, 1.0, late, "").problem == problem


def test_a_program_that_ends_without_a_result_fails_a_check(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint('half a line')\nsys.exit(3)")
    outcome = bench_check.run_check(program, bench_check.environment())
    assert outcome.problem.startswith("ended with 3; the last line is no JSON object")


def test_a_check_knows_every_program():
    assert {"network_faults", "plan_paper", "xdp_parity"} <= known_programs().keys()
    assert not {"common", "sampling", "processes"} & known_programs().keys()
