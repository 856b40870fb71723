"""Children that a worker forks, as a DataLoader does: they keep nothing of it alive, and cannot disturb it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.integration.network import KEY
from tests.integration.udp import CREDENTIALS, MEMORY, QUICK

import luwu
from harness.network.namespaces import wait_until
from luwu.server.network import NetworkServer
from luwu.server.server import LocalServer
from luwu.server.settings import ServerSettings

# Far longer than the tests wait: only the end of a connection can tell that a worker is gone.
SILENT = QUICK.model_copy(update={"keepalive_interval_seconds": 600.0, "keepalive_timeout_seconds": 600.0})

FORKS = Path(__file__).resolve().parents[2] / "build/native/harness/native/libluwu_forks.so"

OPENING = """
import ctypes, multiprocessing, os, sys
import luwu
from luwu.session.local import join
from luwu.session.remote import connect
from luwu.control.timeouts import Timeouts
from tests.integration.fabric_worker import NumpyWorker, small_manifest

where, how = sys.argv[1:3]
timeouts = Timeouts(keepalive_interval_seconds=600.0, keepalive_timeout_seconds=600.0)

def session():
    if where.startswith("luwu://"):
        return connect(where, rank=0, workers=1, timeouts=timeouts)
    if where.endswith(".sock"):
        return join(where, 0, 1)
    return luwu.open(where, memory=64 << 20, rank=0, workers=1)
"""

OUTLIVED = (
    OPENING
    + """
opened = session()
worker = NumpyWorker(opened, small_manifest())
assert worker.step()
reading, writing = os.pipe()
if how == "python":
    child = os.fork()
    if child == 0:
        os.write(writing, bytes(1))
        os.read(0, 1)  # until the test ends it
        os._exit(0)
else:
    child = ctypes.CDLL(how).luwu_fork_child(writing, 0)
os.read(reading, 1)  # the child runs, so what is done in it at a fork is done
print(child, flush=True)
while True:
    worker.step()
"""
)

MISUSED = (
    OPENING
    + """
from luwu.errors import ForkedError

def refused(call):
    try:
        call()
    except ForkedError as error:
        assert str(os.getpid()) in str(error), error
        return True
    return False

def use(opened, worker):
    calls = [worker.step, opened.snapshot, lambda: opened.report({}), lambda: opened.endpoint, opened.initialised]
    found = [refused(call) for call in calls]
    found.append(refused(lambda: worker.endpoint.pull(0)))
    opened.close()
    assert all(found), found

with session() as opened:
    worker = NumpyWorker(opened, small_manifest())
    assert worker.step()
    if how == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=use, args=(opened, worker))
        child.start()
        child.join()
        status = child.exitcode
    else:
        child = os.fork()
        if child == 0:
            use(opened, worker)
            sys.exit(7)  # through the end of this block and of the interpreter
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == (0 if how == "multiprocessing" else 7), status
    assert all(worker.step() for _ in range(3))
print("left")
"""
)


@contextmanager
def process(script: str, where: str, how: str) -> Iterator[subprocess.Popen[str]]:
    """Start a worker in a process of its own; its children wait for the end of its standard input."""
    started = subprocess.Popen(
        [sys.executable, "-c", script, where, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"LUWU_JOB_KEY": KEY},
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        assert started.stdin is not None and started.stdout is not None
        started.stdin.close()  # ends its children
        started.stdout.close()


@contextmanager
def serving(kind: str, folder: Path) -> Iterator[tuple[str, LocalServer | NetworkServer | None]]:
    """Serve, and give the place where a worker finds the server, and the server if it is in this process."""
    if kind == "embedded":
        yield str(folder / "run"), None
    elif kind == "socket":
        with LocalServer(folder / "run", None, MEMORY, 1) as server:
            yield str(server.socket_path), server
    else:
        settings = ServerSettings(
            stores=(folder / "store",), workers=1, listen="127.0.0.1:0", memory=MEMORY, transport=kind
        )
        with NetworkServer(settings, CREDENTIALS, SILENT) as network:
            yield network.url, network


@pytest.mark.parametrize(
    "how",
    [
        "python",
        pytest.param(
            str(FORKS),
            id="c",
            marks=pytest.mark.skipif(
                not FORKS.exists(), reason="the native tests are not built (make test builds them)"
            ),
        ),
    ],
)
@pytest.mark.parametrize("kind", ["embedded", "socket", "tcp", "udp"])
def test_a_child_that_outlives_its_worker_keeps_nothing(
    tmp_path: Path, kind: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(kind, tmp_path) as (where, server), process(OUTLIVED, where, how) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        worker.kill()
        worker.wait()
        os.kill(child, 0)  # the child still runs
        if server is None:
            with luwu.open(where, memory=MEMORY, rank=0, workers=1) as session:
                again = NumpyWorker(session, small_manifest())
                assert again.step()
        elif isinstance(server, LocalServer):
            wait_until(lambda: server.workers_lost() != [], "the server to notice")
        else:
            wait_until(lambda: "lost worker 0" in caplog.text, "the server to notice")
        os.kill(child, 0)


@pytest.mark.parametrize("how", ["python", "multiprocessing"])
@pytest.mark.parametrize("kind", ["embedded", "socket", "tcp", "udp"])
def test_a_child_cannot_use_the_session_and_its_end_does_not_disturb_it(tmp_path: Path, kind: str, how: str) -> None:
    with serving(kind, tmp_path) as (where, server), process(MISUSED, where, how) as worker:
        output, _ = worker.communicate(timeout=90)
        assert (worker.returncode, output) == (0, "left\n")
        if isinstance(server, LocalServer):
            assert server.workers_lost() == [] and server.error() is None


def test_a_child_opens_a_session_of_its_own(tmp_path: Path) -> None:
    script = (
        OPENING
        + """
with luwu.open(where + "/parent", memory=64 << 20, rank=0, workers=1) as opened:
    worker = NumpyWorker(opened, small_manifest())
    assert worker.step()
    child = os.fork()
    if child == 0:
        with luwu.open(where + "/child", memory=64 << 20, rank=0, workers=1) as own:
            assert NumpyWorker(own, small_manifest()).step()
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert worker.step()
"""
    )
    with process(script, str(tmp_path), "python") as worker:
        assert worker.wait(90) == 0
