"""A worker of luwu on real text that is told what to do line by line: join, train, give a step up, write, leave.

Settings: rank, workers, shape, rows. A request is one JSON object {METHOD: {...}} a line, answered with one line; an
error of luwu is an answer too: {"error": CLASS, "message": ..., "at": seconds of the machine's clock}.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kit.child import settings, take_stdout
from kit.model import ADAMW, LossModel, build, gpt
from torch import Tensor

import luwu
from luwu.errors import LuwuError
from luwu.models.generation import Sampling, generate
from luwu.session.local import join
from luwu.session.session import Session

GROUP = 32  # elements that share an exponent, docs/protocol.md
TEXT_BYTES = 1 << 20

Reply = dict[str, Any]


def real_text() -> Tensor:
    """Python's own library, as bytes."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)[:TEXT_BYTES]), dtype=torch.uint8)


def batch_of(text: Tensor, step: int, rows: int, seq: int) -> tuple[Tensor, Tensor]:
    """The whole batch of a step, int64 ids and targets, each (rows, seq): a function of the step alone."""
    starts = torch.randint(len(text) - seq, (rows,), generator=torch.Generator().manual_seed(step))
    cut = torch.stack([text[start : start + seq + 1] for start in starts.tolist()]).long()
    return cut[:, :-1].contiguous(), cut[:, 1:].contiguous()


class Worker:
    """A rank; it may join one server after another."""

    def __init__(self, wanted: dict[str, Any], say: Callable[..., None]) -> None:
        self._rank, self._rows, self._shape = wanted["rank"], wanted["rows"], wanted["shape"]
        self._say = say
        self._text = real_text()
        self._session: Session
        self._model: LossModel

    def join(self, where: str, workers: int, dtype: str) -> Reply:
        """Joins luwu://HOST:PORT, or the server whose socket it is; the step, and the seconds until it may train."""
        began = time.perf_counter()
        if where.startswith("luwu://"):
            self._session = luwu.connect(where, rank=self._rank, workers=workers)
        else:
            self._session = join(Path(where), self._rank, workers)
        with self._failing():
            self._model = luwu.parallelize(
                build(self._shape), self._session, blocks=[gpt.Block], dtype=getattr(torch, dtype)
            )
        self._optimizer = luwu.AdamW(self._model, **ADAMW)
        return {"step": self._session.step, "seconds": time.perf_counter() - began}

    def train(self, to: int, say: bool = False) -> Reply:
        """Trains to a step: bits of this rank's losses, and the seconds of each step. `say`: a line each step."""
        losses, seconds = [], []
        with self._failing():
            while self._session.step < to:
                started = time.perf_counter()
                loss = self._model(*self._batch())
                loss.backward()
                self._optimizer.step()
                self._optimizer.zero_grad()
                seconds.append(time.perf_counter() - started)
                losses.append(float(loss.detach()).hex())
                if say:
                    self._say(step=self._session.step, loss=losses[-1])
        return {"losses": losses, "seconds": seconds}

    def half_way(self) -> Reply:
        """A forward that an exception ends half-way: the step is given up at the next forward."""

        def fail(*_: object) -> None:
            raise KeyError("half-way")

        hook = self._model.gpt.blocks[1].register_forward_hook(fail)
        with self._failing(), contextlib.suppress(KeyError):
            self._model(*self._batch())
        hook.remove()
        return {}

    def attempt(self) -> Reply:
        """Make an attempt at a step; the reply says if it was committed."""
        before = self._session.step
        with self._failing():
            self._model(*self._batch()).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        return {"committed": self._session.step != before}

    def write(self, tokens: int) -> Reply:
        """Generates text, alone."""
        prompt = self._text[:32].long()
        with self._failing():
            text = torch.cat(list(generate(self._model, prompt, tokens, self._shape["seq"], Sampling(0.8, seed=7))))
        return {"digest": hashlib.sha256(text.numpy().tobytes()).hexdigest()}

    def stats(self) -> Reply:
        """Counts of the data plane."""
        return dict(self._session.endpoint.stats())

    def leave(self) -> Reply:
        """Leaves the run."""
        self._session.close()
        return {}

    def reference(self, workers: int, steps: int) -> Reply:
        """Plain torch on the whole batch, float32: losses, and the sum over elements of their group's largest gradient.

        The largest of any worker's gradients, each divided by the number of workers, as docs/protocol.md has it.
        """
        model = build(self._shape)
        optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
        losses, magnitudes = [], []
        for step in range(steps):
            ids, targets = batch_of(self._text, step, self._rows * workers, self._shape["seq"])
            largest: list[Tensor] = []
            sums: list[Tensor] = []
            mean = 0.0
            for rank in range(workers):
                mine = slice(rank * self._rows, (rank + 1) * self._rows)
                loss = model(ids[mine], targets[mine])
                found = torch.autograd.grad(loss, list(model.parameters()))
                sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else list(found)
                groups = [group_maxima(gradient) for gradient in found]
                largest = [torch.maximum(a, b) for a, b in zip(largest, groups, strict=True)] if largest else groups
                mean += float(loss.detach()) / workers
            for parameter, gradient in zip(model.parameters(), sums, strict=True):
                parameter.grad = gradient / workers
            optimizer.step()
            losses.append(mean)
            magnitudes.append(float(sum(group.sum() for group in largest)) * GROUP)
        return {"losses": losses, "magnitudes": magnitudes}

    def _batch(self) -> tuple[Tensor, Tensor]:
        workers = self._session.workers
        ids, targets = batch_of(self._text, self._session.step, self._rows * workers, self._shape["seq"])
        mine = slice(self._rank * self._rows, (self._rank + 1) * self._rows)
        return ids[mine], targets[mine]

    @contextlib.contextmanager
    def _failing(self) -> Any:
        """An error ends the session as it would end a script."""
        try:
            yield
        except LuwuError as error:
            at = time.monotonic()
            self._session.__exit__(type(error), error, None)
            error.at = at  # type: ignore[attr-defined]
            raise


def group_maxima(gradient: Tensor) -> Tensor:
    """The largest magnitude of each 32 elements."""
    flat = gradient.reshape(-1).abs()
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % GROUP))
    return padded.view(-1, GROUP).max(dim=1).values


def main() -> None:
    """Serves requests until standard input ends."""
    replies = take_stdout()

    def say(**line: Any) -> None:
        replies.write(json.dumps(line) + "\n")

    torch.set_num_threads(1)
    worker = Worker(settings(), say)
    say(ready=True)
    for line in sys.stdin:
        ((name, request),) = json.loads(line).items()
        try:
            reply = getattr(worker, name)(**request)
        except LuwuError as error:
            at = getattr(error, "at", time.monotonic())
            reply = {"error": type(error).__name__, "message": str(error), "at": at}
        say(**reply)


if __name__ == "__main__":
    main()
