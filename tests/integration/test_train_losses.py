"""`luwu train` goes on by itself when a worker or its server is lost, and ends as the undisturbed run does."""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.integration.network import KEY, ServerProcess
from tests.integration.small_run import STEPS, validation, workers_of

from harness.training import (
    finish,
    metrics,
    start_small_run,
    steps_of,
    wait_for_line,
    wait_for_steps,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_the_order_within_sets_changes_no_bit(runs, undisturbed, monkeypatch):
    """The other programs of tests are forks of one process and share its hash seed; users' have seeds of their own."""
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    code, output, error = finish(start_small_run(runs, "seeded"))
    assert code == 0, error
    assert (steps_of(runs, "seeded"), validation(output)) == undisturbed


def test_a_worker_that_is_stopped_is_killed_and_replaced(runs, undisturbed):
    process = start_small_run(runs, "stopped", "--step-deadline-seconds", "6")
    wait_for_steps(runs, "stopped", 5)
    os.kill(sorted(workers_of(process))[1], signal.SIGSTOP)
    code, output, error = finish(process)
    assert code == 0, error
    assert re.search(r"worker 1 has made no progress for \d+ s \(step_deadline_seconds is 6\); it is killed", output)
    assert "worker 1 was killed by SIGKILL" in output
    assert (steps_of(runs, "stopped"), validation(output)) == undisturbed


def test_a_worker_that_is_stopped_far_from_its_server_is_replaced(runs, undisturbed, monkeypatch):
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    times = ("--worker-return-seconds", "60", "--step-deadline-seconds", "5")
    with ServerProcess(runs / "fenced-store", 2, *times) as server:
        process = start_small_run(runs, "fenced", "--server", server.url)
        wait_for_steps(runs, "fenced", 5)
        os.kill(sorted(workers_of(process))[1], signal.SIGSTOP)
        code, output, error = finish(process)
    assert code == 0, error
    assert "the server has ended the session of worker 1; it is killed" in output
    assert "another worker 1 has joined" in output
    assert (steps_of(runs, "fenced"), validation(output)) == undisturbed


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "server elsewhere"])
def test_killed_workers_are_started_again_and_the_run_goes_on(runs, undisturbed, monkeypatch, elsewhere):
    run = f"killed-{elsewhere}"
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    with ExitStack() as stack:
        flags = ["--restarts", "5"]
        if elsewhere:
            server = ServerProcess(runs / "killed-store", 2, "--worker-return-seconds", "60")
            flags += ["--server", stack.enter_context(server).url]
        process = start_small_run(runs, run, *flags)
        for number, rank in enumerate((1, 0, 1)):
            made = len(steps_of(runs, run)) if number else 0
            wait_for_steps(runs, run, made + 3)
            os.kill(sorted(workers_of(process))[rank], signal.SIGKILL)
        wait_for_steps(runs, run, len(steps_of(runs, run)) + 3)
        for worker in workers_of(process):  # both at once
            os.kill(worker, signal.SIGKILL)
        code, output, error = finish(process)
    assert code == 0, error
    assert output.count("was killed by SIGKILL") == output.count("starting another in its place") == 5
    assert (steps_of(runs, run), validation(output)) == undisturbed
    assert len(list((runs / run).glob("worker-*.[0-9].log"))) == 5
    assert (runs / run / "launcher.log").read_text().count("starting another in its place (restart ") == 5


def test_a_worker_that_dies_far_from_its_servers(runs, undisturbed, monkeypatch):
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    with ServerProcess(runs / "far-store", 2) as first, ServerProcess(runs / "other-store", 2) as second:
        url = f"{first.url},{second.url.removeprefix('luwu://')}"
        process = start_small_run(runs, "far", "--server", url)
        wait_for_steps(runs, "far", 5)
        os.kill(workers_of(process)[1], signal.SIGKILL)
        code, output, error = finish(process)
        assert code == 0, error
        assert "worker 1" in output and "killed by SIGKILL" in output and "all workers join again" in output
        assert "all workers join again" in (runs / "far" / "launcher.log").read_text()
        assert output.count("worker-1.1.log") == 1 and (runs / "far" / "worker-1.1.log").exists()
        assert (steps_of(runs, "far"), validation(output)) == undisturbed


def start_again(server, store, *flags):
    """Start a server at the address of one that has ended, on its store."""
    return ServerProcess(store, 2, *flags, "--listen", server.url.removeprefix("luwu://"))


@pytest.mark.parametrize(("servers", "transport"), [(1, "tcp"), (2, "tcp"), (1, "udp")])
def test_a_server_that_comes_back_goes_on_with_the_run(runs, undisturbed, monkeypatch, servers, transport):
    """It is killed, and later stopped in order."""
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    run, flags = f"returned-{servers}-{transport}", ("--transport", transport)
    stores = [runs / f"{run}-store-{number}" for number in range(servers)]
    with ExitStack() as stack:
        at = [stack.enter_context(ServerProcess(store, 2, *flags)) for store in stores]
        url = "luwu://" + ",".join(server.url.removeprefix("luwu://") for server in at)
        process = start_small_run(runs, run, "--server", url)
        for end in (lambda server: server.process.kill(), ServerProcess.stop):
            wait_for_steps(runs, run, (len(steps_of(runs, run)) if (runs / run).exists() else 0) + 4)
            end(at[-1])
            at[-1].process.wait(60)
            at[-1] = stack.enter_context(start_again(at[-1], stores[-1], *flags))
        code, output, error = finish(process)
    assert code == 0, error
    assert output.count("its workers join again if the server answers until") >= 2
    rows, lines = steps_of(runs, run), validation(output)
    if transport == "udp":  # its sums are in fixed point
        assert [row[:2] for row in rows] == [row[:2] for row in undisturbed[0]]
        assert [row[2] for row in rows] == pytest.approx([row[2] for row in undisturbed[0]], rel=1e-4)
    else:
        assert (rows, lines) == undisturbed


@pytest.mark.parametrize(
    "said", ["a worker has ended; waiting for the others", "the run stays", "waiting for a server"]
)
def test_ctrl_c_ends_the_wait_for_a_server_that_was_lost(runs, monkeypatch, said):
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    run = f"away-{said.split()[0]}-{said.split()[-1]}"
    with ServerProcess(runs / f"{run}-store", 2) as server:
        process = start_small_run(runs, run, "--server", server.url)
        wait_for_steps(runs, run, 3)
        if "others" in said:  # one of them does not end by itself
            os.kill(workers_of(process)[0], signal.SIGSTOP)
        server.process.kill()
        wait_for_line(process, said)
        process.send_signal(signal.SIGINT)
        code, output, error = finish(process)
    assert code == 130, error
    assert f"stopped after step {len(steps_of(runs, run))} of {STEPS}" in output


@pytest.mark.parametrize("lost", ["worker", "server"])
def test_a_loss_in_a_validation_leaves_its_loss_as_it_was(runs, monkeypatch, lost):
    """The fault makes a worker end in the validation after step 10."""
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    flags = ("--steps", "14", "--eval-every", "5")
    code, _, error = finish(start_small_run(runs, "validated", *flags))
    assert code == 0, error
    store = runs / f"validating-{lost}"
    with ExitStack() as stack, monkeypatch.context() as patch:
        server = stack.enter_context(ServerProcess(store, 2, "--worker-return-seconds", "60"))
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("faults")))
        patch.setenv("TEST_FAULT", f"validation 1 10 {server.process.pid if lost == 'server' else 0}")
        process = start_small_run(runs, store.name + "-run", *flags, "--server", server.url)
        if lost == "server":
            server.process.wait(120)
            stack.enter_context(start_again(server, store))
        code, _, error = finish(process)
    assert code == 0, error
    found = [
        [(row["step"], row["loss"], row.get("validation_loss")) for row in metrics(runs, run)]
        for run in ("validated", store.name + "-run")
    ]
    assert found[0] == found[1]
    assert [step for step, _, validation in found[0] if validation is not None] == [5, 10, 14]


def test_a_server_that_does_not_come_back_ends_the_run(runs, monkeypatch):
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    with ServerProcess(runs / "gone-store", 2) as server:
        process = start_small_run(runs, "gone", "--server", server.url, "--server-return-seconds", "4")
        wait_for_steps(runs, "gone", 3)
        server.process.kill()
        code, output, error = finish(process)
    assert code == 1
    assert "its workers join again if the server answers until" in output
    assert "no server answered at luwu://127.0.0.1:" in error
