"""Common parts of luwu's measured workers: joining the server, the parallelized model, a timed step."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import torch
from kit.model import ADAMW, LossModel, batches, build, gpt

import luwu
from luwu.control.frames import SOCKET_NAME
from luwu.optim.optimizer import Wait
from luwu.session.local import join
from luwu.session.session import Session


def join_server(settings: dict[str, Any]) -> Session:
    """Joins the run's server as the rank that the environment names, waiting until it listens."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    socket = Path(settings["run"]) / SOCKET_NAME
    return join(socket, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def make_model(settings: dict[str, Any], session: Session) -> LossModel:
    """The model of `settings` (shape, dtype, checkpoint, micro_batch_size, meta, frozen), its parameters in the store.

    "meta" builds it on the meta device, so that it never lies whole in a worker; without it its first values are the
    bits that every other side starts from. The first "frozen" layers are.
    """
    if settings.get("meta"):
        with torch.device("meta"):
            model = LossModel(settings["shape"])
    else:
        model = build(settings["shape"])
    for layer in model.gpt.blocks[: settings.get("frozen", 0)]:
        layer.requires_grad_(False)
    dtype = getattr(torch, settings.get("dtype", "float32"))
    return luwu.parallelize(
        model,
        session,
        blocks=[gpt.Block],
        dtype=dtype,
        checkpoint=settings.get("checkpoint", True),
        micro_batch_size=settings.get("micro_batch_size"),
    )


class Trainer:
    """Trains on this rank's rows of every batch; steps continue at the session's step.

    With "one_batch" of `settings` all steps are on the same batch, so that a few are enough to see the loss fall; with
    "max_grad_norm" gradients are clipped; with "closure" a void attempt would be made again.
    """

    def __init__(self, settings: dict[str, Any], session: Session) -> None:
        self._session = session
        self.model = make_model(settings, session)
        self._optimizer = luwu.AdamW(self.model, **ADAMW, max_grad_norm=settings.get("max_grad_norm"))
        self._with_closure = settings.get("closure", False)
        self._rows, self._seq = settings["rows"], settings["shape"]["seq"]
        found = batches(self._rows, self._seq, session.rank, session.workers, first=session.step)
        self._batches = itertools.repeat(next(found)) if settings.get("one_batch") else found

    def step(self, wait: Wait = "answer") -> dict[str, float]:
        """Make an optimizer step; return the seconds of its parts and this rank's loss."""
        ids, targets = next(self._batches)
        forward = backward = started = time.perf_counter()

        def attempt() -> torch.Tensor:
            nonlocal forward, backward
            loss = self.model(ids, targets)
            forward = time.perf_counter()
            loss.backward()
            backward = time.perf_counter()
            return loss

        if self._with_closure:
            loss = self._optimizer.step(attempt, wait=wait)
        else:
            loss = attempt()
            self._optimizer.step(wait=wait)
        self._optimizer.zero_grad(set_to_none=True)
        ended = time.perf_counter()
        return {
            "forward": forward - started,
            "backward": backward - forward,
            "update": ended - backward,
            "loss": float(loss.detach()),
        }

    def timed(self, steps: int, wait: Wait = "durable") -> dict[str, Any]:
        """Runs `steps` steps: this rank's tokens per second, seconds and bytes per step and parts, losses.

        The last step waits until all are on the disk, unless `wait` says otherwise: a sample leaves no work behind.
        """
        before = self._session.endpoint.stats()
        started = time.perf_counter()
        done = [self.step() for _ in range(steps - 1)]
        done.append(self.step(wait))
        seconds = (time.perf_counter() - started) / steps
        parts = {part: sum(step[part] for step in done) / steps for part in ("forward", "backward", "update")}
        rate = self._rows * self._seq / seconds
        after = self._session.endpoint.stats()
        moved = {name: (after[name] - before[name]) / steps for name in ("bytes_pulled", "bytes_pushed")}
        return {
            **parts,
            **moved,
            "seconds": seconds,
            "step_seconds": [step["forward"] + step["backward"] + step["update"] for step in done],
            "tokens_per_second": rate,
            "losses": [step["loss"] for step in done],
        }
