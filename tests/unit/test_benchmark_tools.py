"""The tools that read benchmarks' results."""

import importlib
import json
import math
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bench_check
import figures
from bench import ROOT, known_programs, verdict
from kit.losses import within, worst_difference
from ours.figures import KernelCounts


def reported(name, ok, failed=False):
    return {
        "name": name,
        "ok": ok,
        "failed": failed,
        "seconds": 1.0,
        "machine": {"date": "2026-01-01", "processor": "A", "cores": 2, "memory_bytes": 2**30},
    }


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


def figures_of(path, results, monkeypatch):
    monkeypatch.setattr(figures, "ROOT", path.parent)
    path.write_text(json.dumps({"results": results}))
    return figures.Report(path)


def test_readme_and_page_name_what_was_missed_and_what_is_not_decided(tmp_path, monkeypatch):
    results = [reported("met", True), reported("missed", False), reported("open", None)]
    results[1]["machine"] |= {"processor": "B", "cores": 8}
    report = figures_of(tmp_path / "2026-01-01.json", results, monkeypatch)
    for text in (figures.selection(report), figures.page(report)):
        assert "Bars that were missed: `missed`. Not decided: `open`." in text
        assert "A or B, 2 cores or 8 cores, 1 GiB, " in text


def test_the_readme_has_the_selected_rows_and_the_page_has_all(tmp_path, monkeypatch):
    lora = reported("lora", True) | {"details": {"store_bytes": 4, "frozen": 2, "pushed_bytes": 6, "adapters": 3}}
    disk = {"bytes_per_second": {"luwu": 2e6, "fio": 1e6}, "million_parameters_per_second": {"luwu": 2, "deepspeed": 1}}
    report = figures_of(
        tmp_path / "2026-01-01.json", [lora, reported("optimizer_disk", True) | {"details": disk}], monkeypatch
    )
    row = "| AdamW out of core | 2 Mparam/s; 2 MB/s |"
    assert row in figures.selection(report) and row in figures.page(report)
    assert "LoRA" in figures.page(report) and "LoRA" not in figures.selection(report)


def test_the_page_has_a_benchmarks_note_which_says_who_was_faster(tmp_path, monkeypatch):
    speeds = {(1, "luwu"): 10, (1, "fsdp2"): 9, (1, "ddp"): 12, (1, "ddp, glibc malloc"): 11, (2, "luwu"): 8}
    speeds |= {(ranks, "luwu, every step"): 11 for ranks in (1, 2)}
    measured = [
        {"ranks": ranks, "side": side, "dtype": "float32", "tokens_per_second": rate}
        for (ranks, side), rate in speeds.items()
    ]
    training = reported("train_vs_torch", False) | {"details": {"measured": measured}}
    report = figures_of(tmp_path / "2026-01-01.json", [training], monkeypatch)
    assert "\n\nTraining faster than LuWu: ddp (1 worker, float32). FSDP2 and" in figures.page(report)


def test_a_selected_row_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "SELECTED", (("lora", "no such row"),))
    lora = reported("lora", True) | {"details": {"store_bytes": 4, "frozen": 2, "pushed_bytes": 6, "adapters": 3}}
    report = figures_of(tmp_path / "2026-01-01.json", [lora], monkeypatch)
    with pytest.raises(SystemExit, match="lora has no row that begins with 'no such row'"):
        figures.selection(report)


def test_every_benchmark_describes_its_rows_and_is_in_one_section():
    listed = [name for names in figures.SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(known_programs())
    assert [name for name, path in known_programs().items() if "\ndef rows(" not in path.read_text()] == []


def test_every_result_of_the_newest_report_has_rows():
    report = figures.Report(max((ROOT / "benchmarks" / "results").glob("????-??-??.json")))
    measured = [name for name, result in report.results.items() if not result["failed"]]
    assert [name for name in measured if not report.rows(name)] == []


def test_fuzz_coverage_describes_the_parser_with_the_fewest_lines_reached():
    target = {"share": 1.0, "executions": 600, "finding": False}
    found = {"targets": {"hello": target, "packet": target | {"share": 0.956, "finding": True}}}
    coverage, findings = importlib.import_module("benchmarks.fuzz_coverage").rows(found)
    assert coverage[0].startswith("lines of each of 2 parsers") and coverage[1] == "95.6% at least"
    assert findings[0].startswith("findings in 1,200 executions") and findings[1] == "1"


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
    outcome = bench_check.run_check(program)
    assert outcome.problem.startswith("ended with 3; the last line is no JSON object")


def test_a_check_knows_every_program():
    assert {"network_faults", "plan_paper", "xdp_parity"} <= known_programs().keys()
    assert not {"common", "sampling", "processes"} & known_programs().keys()


@pytest.mark.parametrize("found", [[1.0, math.nan], [math.inf, 1.0]])
def test_losses_that_are_not_finite_are_as_far_away_as_can_be(found):
    assert worst_difference(found, [1.0, 1.0]) == math.inf
    assert worst_difference([1.0, 1.5], [1.0, 1.0]) == 0.5


@pytest.mark.parametrize(("difference", "text"), [(2.27e-7, "3e-7"), (9.1e-6, "1e-5"), (2.0, "2e+0"), (0.0, "0e+0")])
def test_a_difference_is_told_by_a_bound(difference, text):
    assert within(difference) == text


def test_reads_of_a_python_thread_are_left_out_also_after_its_end(tmp_path):
    page = 4096
    (tmp_path / "file").write_bytes(bytes(256 * page))
    file = os.open(tmp_path / "file", os.O_RDONLY | os.O_DIRECT | os.O_SYNC)
    os.fsync(file)
    counts = KernelCounts()
    before, has_read, may_end = counts.now(), threading.Event(), threading.Event()

    def read():
        assert os.preadv(file, [mmap.mmap(-1, 256 * page)], 0) == 256 * page
        has_read.set()
        may_end.wait(60)

    reader = threading.Thread(target=read)
    reader.start()
    assert has_read.wait(60)
    during = counts.now()
    may_end.set()
    reader.join()
    os.close(file)
    assert before["read_bytes"] == during["read_bytes"] == counts.now()["read_bytes"]
