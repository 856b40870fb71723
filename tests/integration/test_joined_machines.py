"""`luwu train --listen` and `--join`: workers on other machines, which come, go and are replaced.

Folders stand for machines where no network is needed. Every run must end as the one on one machine does.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.network import KEY, ServerProcess, make_authority, make_certificate
from tests.integration.small_run import STEPS, validation, workers_of

from harness.network.namespaces import missing, wait_until
from harness.network.network import Network
from harness.training import (
    finish,
    metrics,
    prepare_small_run,
    start,
    start_small_run,
    steps_of,
    wait_for_line,
    wait_for_steps,
)
from luwu.launch.asking import ask_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BYTES = ("bytes_pulled", "bytes_pushed")
JOIN = r"on each other machine, with a copy of (\S+): luwu train --join (luwu://\S+) --key-file job\.key"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with fewer workers gives each more threads, which add in another order."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


class Machines:
    """Launchers of one run in folders of their own; they are killed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = "127.0.0.1:0"
        self._started: list[subprocess.Popen[str]] = []

    def listen(self, *flags: str, here: int = 1) -> subprocess.Popen[str]:
        """Start the launcher that has the run, and return when others may join it."""
        process = start_small_run(self.folder, "run", "--listen", self.address, "--workers-here", str(here), *flags)
        self._started.append(process)
        return self.wait_for_address(process)

    def wait_for_address(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """Return when a launcher has said how others join its run."""
        found = re.match(JOIN, wait_for_line(process, "on each other machine"))
        assert found is not None
        self.url, self.key = found[2], found[1]
        self.address = self.url.removeprefix("luwu://")
        return process

    def join(self, name: str, *flags: str) -> subprocess.Popen[str]:
        """Start a launcher on another machine."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        process = start(folder, "train", "--join", self.url, "--key-file", self.key, "--run", "run", *flags)
        self._started.append(process)
        return process

    def offer(self, name: str) -> subprocess.Popen[str]:
        """Start a launcher on another machine, and return when its offer is there: later ones come after it."""
        process = self.join(name)
        wait_for_line(process, "waiting for a place in the run")
        return process

    def result(self) -> tuple[Any, Any]:
        """Return the rows of the run, and the bytes of its last one."""
        last = metrics(self.folder, "run")[-1]
        return steps_of(self.folder, "run"), [last[name] for name in BYTES]

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def machines(runs: Path, tmp_path: Path) -> Iterator[Machines]:
    for name in ("text", "settings.toml"):
        (tmp_path / name).write_bytes((runs / name).read_bytes())
    found = Machines(tmp_path)
    yield found
    found.end()


def check(process: subprocess.Popen[str], *expected: str, code: int = 0) -> str:
    """Wait for the end of a launcher; return what it said."""
    found, output, error = finish(process)
    assert found == code, output + error
    for words in expected:
        assert words in output + error, output + error
    return output


def check_undisturbed(machines: Machines, undisturbed: tuple[Any, Any], output: str) -> None:
    rows, _ = machines.result()
    assert (rows, validation(output)) == undisturbed


def test_a_machine_that_joins_changes_no_bit(machines: Machines, runs: Path, undisturbed: Any) -> None:
    first = machines.listen()
    other = machines.join("b")
    check_undisturbed(machines, undisturbed, check(first, "runs worker 1", "done"))
    check(other, "worker 1 of 2 on this machine", "training", "done")
    assert machines.result()[1] == [metrics(runs, "undisturbed")[-1][name] for name in BYTES]
    assert (machines.folder / "run" / "job.key").stat().st_mode & 0o777 == 0o600
    again = machines.listen()  # the run is complete
    other = machines.join("b")
    check_undisturbed(machines, undisturbed, check(again, f"this run is complete: {STEPS} of {STEPS} steps"))
    check(other, "done")


def kill_launcher(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def kill_worker(process: subprocess.Popen[str]) -> None:
    os.kill(workers_of(process)[0], signal.SIGKILL)


def leave(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    check(process, "stopped; the run waits for another machine in the place of this one", code=130)


@pytest.mark.parametrize(("lose", "spare"), [(kill_launcher, True), (leave, False), (kill_worker, False)])
def test_what_a_machine_loses_another_takes(
    machines: Machines, undisturbed: Any, lose: Callable[[Any], None], spare: bool
) -> None:
    """All workers are elsewhere; the machine with rank 0 is lost, or its worker, and the run goes on."""
    first = machines.listen(here=0)
    lost, stays = machines.offer("b"), machines.offer("c")
    waiting = [machines.offer("d")] if spare else []
    wait_for_steps(machines.folder, "run", 8)
    assert [(list(each.ranks), each.waits) for each in ask_run(str(machines.folder / "run")).machines] == [
        ([0], 0), ([1], 0), *[([], 1)] * spare,
    ]  # fmt: skip
    lose(lost)
    if lose is leave:
        waiting = [machines.join("d")]
    output = check(first, "runs worker 0", *(["has gone, where worker 0 ran"] if lose is not kill_worker else []))
    check_undisturbed(machines, undisturbed, output)
    check(stays, "done")
    for process in waiting:  # one that has waited to the end has done all it should
        check(process, "done")
    if lose is kill_worker:
        check(lost, "worker 0 was killed by SIGKILL", "(restart 1 of 3)", "done")


def test_a_killed_launcher_comes_back_and_ctrl_c_stops_all(machines: Machines, undisturbed: Any) -> None:
    first = machines.listen()
    other = machines.join("b")
    wait_for_steps(machines.folder, "run", 8)
    kill_launcher(first)
    first = machines.listen()  # at the same address: the other machine tries it again
    wait_for_steps(machines.folder, "run", 20)
    first.send_signal(signal.SIGINT)
    check(first, "resuming after step", "stopped after step", code=130)
    check(other, "joining again if it answers", "stopped", code=130)
    rows, _ = machines.result()
    assert rows == undisturbed[0][: len(rows)] and len(rows) < STEPS
    last = machines.listen()
    other = machines.join("b")
    check_undisturbed(machines, undisturbed, check(last))
    check(other, "done")


def test_a_run_without_its_machines_waits_until_others_come(machines: Machines, undisturbed: Any) -> None:
    """Without restarts the run fails with the lost worker, and begins again when the next machine joins."""
    first = machines.listen("--restarts", "0")
    other = machines.join("b")
    wait_for_steps(machines.folder, "run", 8)
    kill_launcher(other)
    machines.wait_for_address(first)
    machines.join("c")
    check_undisturbed(machines, undisturbed, check(first, "resuming after step"))


def test_a_stop_is_not_lost_with_the_worker_that_was_asked(machines: Machines, undisturbed: Any) -> None:
    """Worker 0 is stopped, asked, and killed; the one in its place is asked again."""
    first = machines.listen(here=0)
    other, spare = machines.offer("b"), machines.offer("c")
    wait_for_steps(machines.folder, "run", 8)
    [worker] = workers_of(other)
    os.kill(worker, signal.SIGSTOP)
    first.send_signal(signal.SIGINT)
    wait_for_line(first, "stopping at the next commit")
    os.kill(worker, signal.SIGKILL)
    check(first, "stopped after step", code=130)
    for process in (other, spare):
        check(process, "stopped", code=130)
    rows, _ = machines.result()
    assert rows == undisturbed[0][: len(rows)] and len(rows) < STEPS


def test_ctrl_c_while_nobody_has_worker_0_stops_at_once(machines: Machines) -> None:
    first = machines.listen(here=0)
    lost, stays = machines.offer("b"), machines.offer("c")
    wait_for_steps(machines.folder, "run", 8)
    kill_launcher(lost)
    wait_for_line(first, "waiting for another machine")
    first.send_signal(signal.SIGINT)
    check(first, "stopped after step", code=130)
    check(stays, "stopped", code=130)


def test_a_worker_that_is_killed_while_it_starts_is_started_again(machines: Machines, undisturbed: Any) -> None:
    first = machines.listen()
    other = machines.offer("b")
    wait_until(lambda: workers_of(other) != [], "the worker's process")
    kill_worker(other)
    check_undisturbed(machines, undisturbed, check(first))
    output = check(other, "done")
    assert "(restart 1 of 3)" in output


def test_a_machine_that_waits_outlives_the_first_one(machines: Machines, undisturbed: Any) -> None:
    """It is there before the run begins, and the launcher that has the run is killed and comes back."""
    first = machines.listen(here=0)
    waits = machines.offer("b")
    kill_launcher(first)
    wait_for_line(waits, "the server at")
    first = machines.listen(here=0)
    other = machines.join("c")
    check_undisturbed(machines, undisturbed, check(first))
    for process in (waits, other):
        check(process, "done")


def test_a_machine_that_is_lost_at_the_very_end_does_not_hang_the_run(machines: Machines, undisturbed: Any) -> None:
    """The run is evaluated again with the next machine, or is complete: nobody can join an evaluation."""
    first = machines.listen()
    other = machines.offer("b")
    wait_for_line(first, "writing a sample")
    kill_launcher(other)
    machines.join("c")
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("on each other machine"):  # at another port
            found = re.match(JOIN, line)
            assert found is not None
            machines.url = found[2]
            machines.join("d")
        if line.startswith("done"):
            break
    check(first)
    assert steps_of(machines.folder, "run") == undisturbed[0]


def test_a_folder_is_of_one_machines_run(machines: Machines) -> None:
    """The folder of a run is not that of another machine's run, and the other way round; nor are two in one."""
    first = machines.listen(here=0)
    one = machines.offer("b")
    check(machines.join("b"), "in use by process", code=1)
    (machines.folder / "own").mkdir()
    (machines.folder / "own" / "config.toml").touch()
    check(machines.join("c", "--run", str(machines.folder / "own")), "expected a folder that has no run", code=2)
    other = machines.join("d")
    wait_for_steps(machines.folder, "run", 3)
    check(start_small_run(machines.folder, "d/run"), "keeps the text of a run that another machine has", code=2)
    first.send_signal(signal.SIGINT)
    for process in (first, one, other):
        check(process, "stopped", code=130)


def test_an_error_on_one_machine_ends_all(machines: Machines) -> None:
    """A folder for activations that is a file is an error of that machine alone."""
    (machines.folder / "file").touch()
    first = machines.listen()
    other = machines.join("b", "--offload", str(machines.folder / "file"))
    error = f"{machines.folder / 'file'}"
    check(other, error, code=2)
    check(first, "on ", error, code=2)


def test_ctrl_c_while_machines_are_missing_ends_at_once(machines: Machines) -> None:
    first = machines.listen(here=0)
    other = machines.offer("b")
    first.send_signal(signal.SIGINT)
    check(first, "stopped after step 0", code=130)
    check(other, "stopped", code=130)


def test_a_join_is_refused_by_name(machines: Machines, tmp_path: Path) -> None:
    machines.listen(here=0)
    (tmp_path / "wrong.key").write_text("another key that is long enough\n")
    key, machines.key = machines.key, str(tmp_path / "wrong.key")
    check(machines.join("b"), "the job key is not the server's", code=2)
    machines.key = key
    check(machines.join("b", "--workers-here", "0"), "--workers-here: expected 1 to 4096", code=2)
    check(machines.join("b", "--layers", "3"), "--layers: expected only --run", code=2)
    with ServerProcess(tmp_path / "store", 2) as server:
        machines.url = server.url
        (tmp_path / "server.key").write_text(KEY)
        machines.key = str(tmp_path / "server.key")
        check(machines.join("b"), "expected the address of a luwu train --listen, found a luwu server", code=2)


def test_machines_with_certificates(machines: Machines, undisturbed: Any, tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    flags = []
    for name in ("one", "two"):
        files = make_certificate(tmp_path, name, authority)
        tls = zip(("--tls-cert", "--tls-key", "--tls-ca"), files.paths, strict=True)
        flags.append([word for pair in tls for word in pair])
    process = start_small_run(tmp_path, "run", "--listen", "127.0.0.1:0", "--workers-here", "1", *flags[0])
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("on each other machine"))
    found = re.search(r"with a certificate of its own: luwu train --join (luwu://\S+) --tls-cert", line)
    assert found is not None
    url = found[1]
    other = start(tmp_path, "train", "--join", url, "--run", "other", *flags[1])
    check_undisturbed(machines, undisturbed, check(process))
    check(other, "done")


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_machines_in_networks_of_their_own(runs: Path, undisturbed: Any, tmp_path: Path) -> None:
    """Each machine has one address and no name; the one that joins has no text, and takes it from the other."""
    prepare_small_run(tmp_path)
    luwu = [sys.executable, "-m", "luwu.cli", "train"]
    there = tmp_path / "there"
    with Network(folder=tmp_path / "logs") as network:
        network.link("a", "b")
        a, b = network["a"], network["b"]
        flags = ["--config", f"{tmp_path}/settings.toml", "--data", f"{tmp_path}/text", "--run", f"{tmp_path}/run"]
        first = a.popen([*luwu, *flags, "--listen", f"{a.address}:7070", "--workers-here", "1"])
        key = tmp_path / "run" / "job.key"
        wait_until(key.exists, "the run's key")
        join = ["--join", f"luwu://{a.address}:7070", "--key-file", str(key), "--run", str(there)]
        other = b.popen([*luwu, *join])
        assert (first.wait(200), other.wait(60)) == (0, 0), network.report()
    assert steps_of(tmp_path, "run") == undisturbed[0]
    assert (there / "corpus.bin").read_bytes() == (tmp_path / "run" / "corpus.bin").read_bytes()
