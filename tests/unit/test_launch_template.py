"""Workers are forks of one template, which imports what they need once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.unit.stand_in import python_of

from harness.network.namespaces import has_ended
from luwu.core.room import NO_WAIT
from luwu.launch.template import Template


@pytest.fixture
def make_template(tmp_path, monkeypatch):
    """Makes templates whose forks run a piece of Python, with the ranks' logs in a folder."""
    made = []

    def make(code, before="", prepare="pass"):
        python = python_of(tmp_path, code, before, prepare)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", python)
            made.append(Template("module", tmp_path / "job", tmp_path / "template.log", environment, NO_WAIT))
        return made[-1]

    yield make
    for template in made:
        template.kill()


def fork(template: Template, folder: Path, rank: int):
    reading, writing = os.pipe()
    os.close(reading)
    with (folder / f"{rank}.log").open("wb") as log:
        process = template.fork(rank, log.fileno(), writing)
    os.close(writing)
    return process


def wait_for_words(log: Path) -> str:
    while not log.read_text().endswith("\n"):
        pass
    return log.read_text()


def test_what_is_prepared_is_prepared_once_for_all(make_template, tmp_path):
    template = make_template("print(rank, prepared, os.getppid(), flush=True); sys.exit(7 + rank)")
    forks = [fork(template, tmp_path, rank) for rank in range(3)]
    assert [process.wait() for process in forks] == [7, 8, 9]
    assert [process.poll() for process in forks] == [7, 8, 9]
    lines = [(tmp_path / f"{rank}.log").read_text().split() for rank in range(3)]
    assert [line[0] for line in lines] == ["0", "1", "2"]
    assert {(line[1], line[2]) for line in lines} == {(f"[{template._process.pid}]", str(template._process.pid))}
    assert not template.ended


def test_what_workers_import_starts_no_thread_which_a_fork_would_lack():
    program = """
import os, luwu.train.worker as worker
worker.prepare()
import torch
print(len(os.listdir('/proc/self/task')), torch.cuda.is_initialized())
"""
    environment = os.environ | {"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "1"}  # OpenBLAS knows of forks
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1 False\n"


def test_an_error_of_the_preparation_is_raised_in_each_worker(make_template, tmp_path):
    template = make_template("", prepare="import not_there")
    for rank in range(2):
        assert fork(template, tmp_path, rank).wait() == 1
        assert "No module named 'not_there'" in (tmp_path / f"{rank}.log").read_text()
    assert (tmp_path / "template.log").read_text() == ""


def test_a_signal_to_all_processes_ends_workers_as_they_wish_and_not_the_template(make_template, tmp_path):
    stops = """
import signal
signal.signal(signal.SIGTERM, lambda *_: (print("stops", flush=True), sys.exit(3)))
"""
    template = make_template("print(os.getpid(), flush=True); time.sleep(60)", before=stops)
    forks = [fork(template, tmp_path, rank) for rank in range(2)]
    pids = [int(wait_for_words(tmp_path / f"{rank}.log")) for rank in range(2)]
    for pid in [template._process.pid, *pids]:
        os.kill(pid, signal.SIGTERM)
    assert [process.wait() for process in forks] == [3, 3]
    assert not template.ended
    assert [(tmp_path / f"{rank}.log").read_text().split()[1:] for rank in range(2)] == [["stops"]] * 2
    assert fork(template, tmp_path, 2).poll() is None


def test_a_fork_that_cannot_say_that_it_is_there_ends_and_serves_nobody(make_template, tmp_path):
    fails = """
import socket
def send_fds(own, buffers, descriptors, real=socket.send_fds):
    raise OSError(105, "No buffer space available")
socket.send_fds = send_fds
"""
    template = make_template("", before=fails)
    assert [fork(template, tmp_path, rank).wait() for rank in range(3)] == [1, 1, 1]
    assert not template.ended


@pytest.mark.parametrize(
    ("fails_once", "said"),
    [
        (
            """
def fork(real=os.fork):
    os.fork = real
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = fork
""",
            "[Errno 11] Resource temporarily",
        ),
        (
            """
def opened(pid, real=os.pidfd_open):
    if pid == os.getpid():
        return real(pid)
    os.pidfd_open = real
    raise OSError(24, "Too many open files")
os.pidfd_open = opened
""",
            "[Errno 24]",
        ),
    ],
    ids=["no process", "an end that cannot be watched"],
)
def test_a_fork_that_fails_ends_one_worker_alone(make_template, tmp_path, fails_once, said):
    template = make_template("time.sleep(rank)", before=fails_once)
    assert fork(template, tmp_path, 60).wait() == 1
    assert f"no process for a worker: {said}" in (tmp_path / "60.log").read_text()
    assert fork(template, tmp_path, 0).wait() == 0


def test_output_that_waits_in_the_template_is_not_written_by_its_forks(make_template, tmp_path):
    template = make_template("print('mine')", before="print('once')")
    assert fork(template, tmp_path, 0).wait() == 0
    assert (tmp_path / "0.log").read_text() == "mine\n"
    assert (tmp_path / "template.log").read_text() == "once\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_that_is_sent_before_the_fork_arrives(make_template, tmp_path, number):
    template = make_template("time.sleep(60)")
    process = fork(template, tmp_path, 0)
    process.send_signal(number)
    assert process.wait() == -number
    process.kill()  # it has ended: nothing happens


def test_a_signal_reaches_a_fork_that_nobody_has_looked_at(make_template, tmp_path):
    template = make_template("print(os.getpid(), flush=True); time.sleep(60)")
    process = fork(template, tmp_path, 0)
    pid = int(wait_for_words(tmp_path / "0.log"))
    process.kill()
    while not has_ended(pid):
        pass
    assert process.wait() == -signal.SIGKILL


def test_the_forks_die_with_the_template_and_one_that_was_not_made_yet_ends_as_it_did(make_template, tmp_path):
    template = make_template("print(os.getpid(), flush=True); time.sleep(60)")
    process = fork(template, tmp_path, 0)
    pid = int(wait_for_words(tmp_path / "0.log"))
    assert process.poll() is None
    os.kill(template._process.pid, signal.SIGSTOP)
    waits = fork(template, tmp_path, 1)
    assert waits.poll() is None
    os.kill(template._process.pid, signal.SIGKILL)
    assert (process.wait(), waits.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
    assert template.ended and has_ended(pid)
    assert fork(template, tmp_path, 2).wait() == -signal.SIGKILL


def test_a_template_that_ends_by_itself_ends_its_forks_with_its_status(make_template, tmp_path):
    template = make_template("", before="sys.exit('no GPU')")
    assert fork(template, tmp_path, 0).wait() == 1
    assert template.ended
    assert (tmp_path / "template.log").read_text() == "no GPU\n"


SAY_PIDS_AND_WAIT = "print(os.getpid(), os.getppid(), flush=True); time.sleep(60)"


@pytest.mark.parametrize(
    ("code", "prepare", "log"),
    [(SAY_PIDS_AND_WAIT, "pass", "0.log"), ("", SAY_PIDS_AND_WAIT, "template.log")],
    ids=["a fork is there", "the template still imports"],
)
def test_template_and_forks_end_with_the_launcher(tmp_path, code, prepare, log):
    python = python_of(tmp_path, code, prepare=prepare)
    launcher = f"""
    import sys, time
    from pathlib import Path
    from tests.unit.test_launch_template import fork
    from luwu.core.room import NO_WAIT
    from luwu.launch.template import Template
    folder = Path({str(tmp_path)!r})
    sys.executable = {python!r}
    template = Template("module", folder / "job", folder / "template.log", {{}}, NO_WAIT)
    process = fork(template, folder, 0)
    time.sleep(60)
    """
    (tmp_path / log).touch()
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(launcher)], cwd=Path(__file__).parents[2])
    pids = [int(pid) for pid in wait_for_words(tmp_path / log).split()]
    process.kill()
    process.wait()
    while not all(has_ended(pid) for pid in pids):
        pass
