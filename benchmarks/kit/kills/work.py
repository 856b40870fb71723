"""Work of the processes that are killed: a worker, an embedded or a local server, and luwu's own commands.

A worker says "opening", "resumed" (step), "voting" (step) and "committed" (step, with the bits of its loss), and in the
end "digest"; or "error" (class).
"""

from __future__ import annotations

import hashlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import grpc  # noqa: F401 - imported before anything forks, as all that follows
import torch
import torch._dynamo

import luwu
import luwu.cli.main
import luwu.server.network
import luwu.session.remote
import luwu.switch.service
from kit.kills.processes import say
from kit.model import ADAMW, batches, build, gpt
from luwu.errors import LuwuError
from luwu.server.server import LocalServer
from luwu.session.local import join
from luwu.session.session import Session

SHAPE = {"layers": 2, "hidden": 32, "heads": 2, "seq": 32}
ROWS = 1
MEMORY_BYTES = 64 << 20
ENDLESS = 1 << 40
FAILED = 3
KEY = "the key of a benchmark's job"


def train(enter: Callable[[], Session], until: int) -> int:
    """Train to a step, or until killed; the exit status is `FAILED` after an error of luwu."""
    say(opening=True)
    try:
        with enter() as session:
            model = luwu.parallelize(build(SHAPE), session, blocks=[gpt.Block])
            optimizer = luwu.AdamW(model, **ADAMW)
            found = batches(ROWS, SHAPE["seq"], session.rank, session.workers, first=session.step)
            say(resumed=session.step)
            while session.step < until:
                loss = model(*next(found))
                loss.backward()
                say(voting=session.step + 1)
                optimizer.step()
                optimizer.zero_grad()
                say(committed=session.step, loss=float(loss.detach()).hex())
            if until != ENDLESS:
                say(digest=digest(model))
    except LuwuError as error:
        say(error=type(error).__name__, message=str(error))
        return FAILED
    return 0


def embedded(run: Path, until: int = ENDLESS, durable: str = "step") -> int:
    """Train in one process that is its own server."""
    return train(lambda: luwu.open(run, memory=MEMORY_BYTES, rank=0, workers=1, durable=durable), until)


def local_worker(socket: Path, rank: int, workers: int, until: int = ENDLESS) -> int:
    """Train with a server of this machine, through shared memory."""
    return train(lambda: join(socket, rank, workers), until)


def remote_worker(url: str, rank: int, workers: int, until: int = ENDLESS) -> int:
    """Train with servers on the network."""
    return train(lambda: luwu.connect(url, rank=rank, workers=workers, key=KEY), until)


def local_server(run: Path, workers: int) -> None:
    """Serve this machine's workers, as `luwu train` does, until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with LocalServer(run, None, MEMORY_BYTES, workers, optimizer_threads=1):
        say(listening=True)
        signal.sigwait([signal.SIGTERM])


def run_luwu(*words: str) -> None:
    """Be the command `luwu WORDS`, in a fork."""
    sys.argv = ["luwu", *words]
    luwu.cli.main.app()


def digest(model: torch.nn.Module) -> str:
    """SHA-256 over all parameters' bits, in the order of their names."""
    found = hashlib.sha256()
    for name, value in sorted(luwu.full_state_dict(model).items()):
        found.update(name.encode())
        found.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
