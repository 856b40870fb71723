"""A worker that hangs or is stopped is named by the server, over every transport, and the run goes on with it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.network import KEY
from tests.integration.pausing import PAUSE
from tests.integration.udp import CREDENTIALS, MEMORY

from harness.network.namespaces import wait_until
from luwu.control.timeouts import Timeouts
from luwu.server import server as local_server
from luwu.server.network import NetworkServer
from luwu.server.server import LocalServer
from luwu.server.settings import ServerSettings

pytestmark = pytest.mark.timeout(300)

TIMES = {"progress_seconds": 0.2, "idle_progress_seconds": 2, "slow_worker_seconds": 3, "look_seconds": 0.1}
PROGRAM = f"""
import sys, torch, luwu
from luwu.control.timeouts import Timeouts
from luwu.session.local import join

times = Timeouts(**{TIMES!r})
url, rank = sys.argv[1], int(sys.argv[2])

{PAUSE}
def pause():
    if rank == 1:
        print("paused", flush=True)
        sys.stdin.readline()

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
    def forward(self, x):
        for index, block in enumerate(self.blocks):
            x = torch.tanh(block(x))
            x = Pause.apply(x, pause) if index == 1 else x
        return x

if url.startswith("luwu://"):
    session = luwu.connect(url, rank=rank, workers=2, key={KEY!r}, timeouts=times)
else:
    session = join(url, rank, 2)
    session._timeouts = times
with session:
    torch.manual_seed(0)
    model = luwu.parallelize(Model(), session)
    optimizer = luwu.AdamW(model, lr=1e-2)
    while session.step < 2:
        model(torch.full((2, 8), 1.0 + rank)).sum().backward()
        optimizer.step()
"""


@contextmanager
def serve(transport: str, folder: Path, said: Callable[[], list[str]]) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Serve two workers; yield where, and a function that returns what the server has said of laggards."""
    if transport == "shared memory":
        told: list[str] = []
        with LocalServer(folder, None, MEMORY, 2, on_slow=told.append) as local:
            yield str(local.socket_path), lambda: told
        return
    settings = ServerSettings(
        stores=(folder / "store",), workers=2, listen="127.0.0.1:0", memory=MEMORY, transport=transport
    )
    with NetworkServer(settings, CREDENTIALS, Timeouts(**TIMES)) as server:
        mark = f"slow job={server._runs.run.job:x} "
        yield server.url, lambda: [text.removeprefix(mark) for text in said() if text.startswith(mark)]


def wait_for(said: Callable[[], list[str]], words: str) -> None:
    wait_until(lambda: bool(said()) and words in said()[-1], f"{words!r} after {said()}")


def run_with_pauses(transport: str, folder: Path, logged: Callable[[], list[str]]) -> list[str]:
    """Train two steps; worker 1 hangs in the first's backward, and is stopped in the second's."""
    folder.mkdir()
    program = folder / "train.py"
    program.write_text(PROGRAM)
    with serve(transport, folder, logged) as (url, said):
        workers = [
            subprocess.Popen(
                [sys.executable, program, url, str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            go_on, paused = workers[1].stdin, workers[1].stdout
            assert go_on is not None and paused is not None
            for stopped, words in ((False, "made no progress"), (True, "nothing has come")):
                assert paused.readline() == "paused\n"
                if stopped:
                    workers[1].send_signal(signal.SIGSTOP)
                wait_for(said, words)
                if stopped:
                    workers[1].send_signal(signal.SIGCONT)
                go_on.write("\n")
                go_on.flush()
                if not stopped:  # the run ends then
                    wait_for(said, "goes on")
            assert [worker.wait(60) for worker in workers] == [0, 0]
        finally:
            for worker in workers:
                worker.kill()
                worker.communicate()
        return said()


def test_a_worker_that_hangs_or_is_stopped_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "TIMEOUTS", Timeouts(**TIMES))
    transports = ("shared memory", "tcp", "udp")
    with ThreadPoolExecutor(len(transports)) as pool:
        runs = [
            pool.submit(run_with_pauses, each, tmp_path / each, lambda: list(caplog.messages)) for each in transports
        ]
        for transport, run in zip(transports, runs, strict=True):
            said = run.result()
            hung, stopped = (
                next(text for text in said if words in text) for words in ("no progress", "nothing has come")
            )
            pattern = (
                r"step 1 waits for worker 1, which has made no progress for \d+ s: it is in backward of block blocks"
                r"\.\d, and has pushed 1 block; its program is at train\.py line \d+, in pause"
            )
            assert re.fullmatch(pattern, hung), (transport, hung)
            assert stopped.startswith("step 2 waits for worker 1, from which nothing has come for "), transport
