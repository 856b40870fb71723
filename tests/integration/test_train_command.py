"""`luwu train` as a user runs it: real processes, real signals. Every run must end as the undisturbed one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.network import KEY, ServerProcess
from tests.integration.small_run import STEPS, validation, workers_of

import luwu
from harness.training import (
    finish,
    metrics,
    start,
    start_small_run,
    steps_of,
    wait_for_line,
    wait_for_steps,
)
from luwu.core.manifest import Manifest
from luwu.core.units import bytes_text
from luwu.errors import ConfigError
from luwu.server.server import LocalServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # one test starts a run six times


def test_a_run_learns_and_leaves_its_files(runs, undisturbed):
    rows, lines = undisturbed
    assert [row[0] for row in rows] == list(range(1, STEPS + 1))
    assert rows[-1][2] < rows[0][2] - 1
    assert len(lines) == 1
    for name in ("loss.png", "throughput.png", "metrics.jsonl", "config.toml", "worker-0.log"):
        assert (runs / "undisturbed" / name).stat().st_size >= 0
    assert not (runs / "undisturbed" / "luwu.sock").exists()


def test_what_a_run_pulled_and_pushed_is_known_from_its_model(runs, undisturbed):
    """Counts are right to the byte. The table is pulled for the embedding and for the head's loss."""
    stored = json.loads((runs / "undisturbed/store/manifest.json").read_text())["manifest"]
    root, table, first, last = (4 * block.elements for block in Manifest.from_json(json.dumps(stored)).blocks)
    for row in metrics(runs, "undisturbed"):
        steps = row["step"]
        assert row["bytes_pushed"] == 2 * steps * (root + table + first + last)
        assert row["bytes_pulled"] == 2 * steps * (root + 2 * (table + first + last))
    said = (runs / "undisturbed-said").read_text()
    (shown,) = (line for line in said.splitlines() if line.startswith(f"step {STEPS}/{STEPS}"))
    assert f"pulled {bytes_text(row['bytes_pulled'])}  pushed {bytes_text(row['bytes_pushed'])}  store" in shown


def test_rows_tell_what_a_step_waited_for_and_the_run_is_explained(runs, undisturbed):
    first, *rows = metrics(runs, "undisturbed")
    assert "server" not in first
    for row in rows:
        slowest = row["slowest"]
        assert slowest["rank"] in (0, 1) and 0 < slowest["data_seconds"] < slowest["own_seconds"]
        assert slowest["others_seconds"] <= slowest["own_seconds"] and min(slowest["wait_seconds"]) >= 0
        assert row["server"]["shared_memory"] and row["server"]["threads"] == len(os.sched_getaffinity(0))
    assert all(sum(row["server"][name] for row in rows) > 0 for name in ("written_bytes", "write_seconds"))
    code, output, error = finish(start(runs, "explain", "undisturbed"))
    assert code == 0, error
    steps, binds, *_ = output.splitlines()
    assert steps.startswith(f"{STEPS - 4} steps of ") and " % of a step " in binds


def test_micro_batches_change_rounding_alone(runs):
    """Activations on the disk change nothing."""
    text = (runs / "settings.toml").read_text().replace("dropout = 0.1", "dropout = 0")
    (runs / "plain.toml").write_text(text + "warmup_steps = 0\n")
    found = []
    for flags in ([], ["--micro-batch", "2", "--offload", "activations"]):
        run, settings = f"micro{len(flags)}", ("--config", "plain.toml", "--workers", "1", "--steps", "10")
        code, _, error = finish(start_small_run(runs, run, *settings, *flags))
        assert code == 0, error
        found.append([row[2] for row in steps_of(runs, run)])
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[1] != found[0]
    assert list((runs / "activations").iterdir()) == []


def test_a_complete_run_is_only_evaluated_again(runs, undisturbed):
    code, output, _ = finish(start_small_run(runs, "undisturbed", "--workers", "1"))
    assert code == 0
    assert f"this run is complete: {STEPS} of {STEPS} steps" in output
    assert validation(output) == undisturbed[1]
    assert steps_of(runs, "undisturbed") == undisturbed[0]


def stop_with_ctrl_c(runs, process):
    process.send_signal(signal.SIGINT)
    code, output, _ = finish(process)
    assert code == 130
    assert f"stopped after step {len(steps_of(runs, 'disturbed'))} of {STEPS}" in output


def stop_with_ctrl_c_twice(runs, process):
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130


def kill_a_worker(rank):
    def kill(runs, process):
        os.kill(workers_of(process)[rank], signal.SIGKILL)
        code, _, error = finish(process)
        assert code == 1
        assert f"worker {rank}" in error and "killed by SIGKILL" in error and f"worker-{rank}.log" in error

    return kill


def kill_the_launcher(runs, process):
    workers = workers_of(process)
    assert len(workers) == 2
    process.kill()
    finish(process)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "workers outlive their launcher"
        time.sleep(0.05)


def test_the_same_command_goes_on_whatever_has_ended_the_run(runs, undisturbed):
    """The run is ended in every way, one after the other. The next start writes the row of an unreported commit."""
    rows, lines = undisturbed
    ends = [stop_with_ctrl_c, kill_a_worker(0), kill_the_launcher, kill_a_worker(1), stop_with_ctrl_c_twice]
    unsaid = 0
    for number, end in enumerate(ends):
        process = start_small_run(runs, "disturbed", "--restarts", "0")
        wait_for_steps(runs, "disturbed", (len(steps_of(runs, "disturbed")) if number else 0) + 3)
        end(runs, process)
        found = steps_of(runs, "disturbed")
        unsaid += end is not stop_with_ctrl_c
        assert found == [row for row in rows if row in found], end
        assert found[-1][0] - len(found) <= unsaid, end
    code, output, error = finish(start_small_run(runs, "disturbed"))
    assert code == 0, error
    assert "resuming after step" in output
    assert (steps_of(runs, "disturbed"), validation(output)) == (rows, lines)


def end_unreported(runs, monkeypatch, fault, *flags):
    """End a run between the commit of a step and its row; return the step."""
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("faults")))
        patch.setenv("TEST_FAULT", fault)
        code, _, error = finish(start_small_run(runs, *flags, "--restarts", "0"))
    assert code == (-signal.SIGKILL if fault.startswith("launcher") else 1), error
    return int(fault.split()[-1])


def check_unreported(rows, lost, outlived=STEPS, made_again=()):
    """Check that the rows of lost steps have the values known before the vote, and no others.

    Workers may outlive their launcher by a moment, and commit the steps that follow `outlived`. Steps whose server was
    killed may be `made_again`, and have all values then.
    """
    counts = []
    for row in rows:
        unknown = {name for name in ("seconds", "tokens_per_second", "hidden") if row[name] is None}
        may_be_lost = row["step"] > outlived and counts[-1] == 3
        is_whole = row["step"] in made_again and not unknown
        assert len(unknown) == (3 if row["step"] in lost else 0) or (may_be_lost and len(unknown) == 3) or is_whole, row
        counts.append(len(unknown))
        assert row["committed"] and row["tokens"] == 6 * 32
        assert row["bytes_pulled"] > 0 and row["bytes_pushed"] > 0


def test_a_step_that_was_committed_and_not_reported_has_its_row(runs, undisturbed, monkeypatch):
    """The first step of the run and the last one are among them."""
    faults = ["worker 0 1", "launcher 11", f"worker 1 {STEPS}"]
    lost = [end_unreported(runs, monkeypatch, fault, "unreported") for fault in faults]
    assert STEPS not in [row[0] for row in steps_of(runs, "unreported")]
    code, output, error = finish(start_small_run(runs, "unreported"))
    assert code == 0, error
    assert (steps_of(runs, "unreported"), validation(output)) == undisturbed
    check_unreported(metrics(runs, "unreported"), lost, made_again=[11])


def test_a_step_that_no_worker_lived_to_report_has_its_row(runs, undisturbed, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("faults")))
        patch.setenv("TEST_FAULT", "workers 5")
        code, output, error = finish(start_small_run(runs, "unlived"))
    assert code == 0, error
    assert output.count("starting another in its place") == 2
    assert (steps_of(runs, "unlived"), validation(output)) == undisturbed
    check_unreported(metrics(runs, "unlived"), [5])


def test_one_run_folder_has_one_user(runs):
    with LocalServer(runs / "shared", [], 64 << 20, 1):
        code, _, error = finish(start_small_run(runs, "shared"))
    assert code == 1
    assert str(os.getpid()) in error


def test_ctrl_c_ends_the_wait_for_a_server_at_once(runs, monkeypatch):
    """There is no commit to wait for before the first step, and the wait for the server may last for a minute."""
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    process = start_small_run(runs, "alone", "--server", "luwu://127.0.0.1:9")
    wait_for_line(process, "waiting for a server")
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    code, output, error = finish(process)
    assert code == 130, error
    assert "stopped after step 0" in output
    assert time.monotonic() - began < 20


def test_a_server_elsewhere_trains_the_same(runs, undisturbed, monkeypatch):
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    with ServerProcess(runs / "elsewhere-store", 2) as server:
        process = start_small_run(runs, "elsewhere", "--server", server.url)
        wait_for_steps(runs, "elsewhere", 5)
        process.send_signal(signal.SIGINT)
        code, output, error = finish(process)
        assert code == 130, error
        code, output, error = finish(start_small_run(runs, "elsewhere", "--server", server.url))
        assert code == 0, error
        assert "resuming after step" in output
        assert (steps_of(runs, "elsewhere"), validation(output)) == undisturbed
        assert not (runs / "elsewhere/store").exists()
        monkeypatch.setenv("LUWU_JOB_KEY", KEY[::-1])
        code, _, error = finish(start_small_run(runs, "elsewhere", "--server", server.url))
        assert code == 2 and "the job key is not the server's" in error


def test_a_step_that_was_not_reported_far_from_its_servers_has_its_row(runs, undisturbed, monkeypatch):
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    with ServerProcess(runs / "far-lost", 2) as first, ServerProcess(runs / "other-lost", 2) as second:
        flags = ("far-unreported", "--server", f"{first.url},{second.url.removeprefix('luwu://')}")
        lost = [end_unreported(runs, monkeypatch, fault, *flags) for fault in ("worker 1 3", "launcher 8")]
        code, output, error = finish(start_small_run(runs, *flags))
        assert code == 0, error
        assert (steps_of(runs, "far-unreported"), validation(output)) == undisturbed
        check_unreported(metrics(runs, "far-unreported"), lost, outlived=lost[1])


def test_a_run_ends_well_in_an_odd_environment_and_its_folder_is_not_taken_for_a_new_one(runs):
    """Its parent ignores SIGCHLD, as some supervisors do; a notebook has chosen a backend; the output takes ASCII."""
    odd = {"MPLBACKEND": "module://not_installed", "PYTHONIOENCODING": "ascii"}
    ignoring = ["env", "--ignore-signal=CHLD", sys.executable, "-m", "luwu.cli", "train", "--config", "settings.toml"]
    flags = ["--steps", "3", "--workers", "1", "--run", "striped-ö"]
    ended = subprocess.run(
        [*ignoring, *flags, "--data", "text", "--store", "d0", "--store", "d1"],
        cwd=runs, env=os.environ | odd, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "validation loss" in ended.stdout and (runs / "striped-ö" / "loss.png").exists()
    assert (runs / "striped-ö" / "template.log").read_text() == ""  # it could wait for the worker's end
    with pytest.raises(ConfigError, match=r"expected stores=\[.*d0.*d1.*\], found none"):
        luwu.open(runs / "striped-ö", memory="64MiB")
    with luwu.open(runs / "striped-ö", stores=[runs / "d0", runs / "d1"], memory="64MiB"):
        pass
    (runs / "bad.jsonl").write_text('{"text": "a"}\n{"text":\n')
    bad = subprocess.run(
        [*ignoring, "--data", "bad.jsonl", "--run", "bad"], cwd=runs, capture_output=True, text=True, check=False
    )
    assert bad.returncode == 2 and "bad.jsonl:2" in bad.stderr
