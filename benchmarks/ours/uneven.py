"""luwu's workers of different speeds. Settings: run, shape, batch, steps, warm_up, slowness (by rank), balanced."""

from __future__ import annotations

import time
from typing import Any

import torch
from kit.child import serve, settings, take_stdout
from kit.model import ADAMW, batches, build, gpt
from kit.slowed import slow_down
from worker import join_server

import luwu
from luwu.core.shares import even_share
from luwu.session.session import Session


class Trainer:
    """Trains on this worker's rows of every batch, divided evenly or by speed."""

    def __init__(self, wanted: dict[str, Any], session: Session) -> None:
        self._session, self._batch, self._balanced = session, wanted["batch"], wanted["balanced"]
        model = build(wanted["shape"])
        slow_down(model, wanted["slowness"][session.rank])
        self._model = luwu.parallelize(model, session, blocks=[gpt.Block])
        self._optimizer = luwu.AdamW(self._model, **ADAMW)
        self._batches = batches(self._batch, wanted["shape"]["seq"])
        self._counts: tuple[int, ...] = ()

    def step(self) -> None:
        """Make an optimizer step."""
        session = self._session
        if self._balanced:
            divided = session.divide_batch(self._batch)
            rows, self._counts = divided.rows, divided.counts
        else:
            rows = even_share(self._batch, session.rank, session.workers)
        ids, targets = next(self._batches)
        weight = (rows.stop - rows.start) * session.workers / self._batch
        (self._model(ids[rows], targets[rows]) * weight).backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def timed(self, steps: int) -> dict[str, Any]:
        """Return the seconds of a step until all are on the disk, and the rows of each worker in the last one."""
        started = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._session.wait_durable()
        return {"seconds": (time.perf_counter() - started) / steps, "counts": self._counts}


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    torch.manual_seed(0)
    with join_server(wanted) as session:
        trainer = Trainer(wanted, session)
        trainer.timed(wanted["warm_up"])
        serve(replies, lambda: trainer.timed(wanted["steps"]))


if __name__ == "__main__":
    main()
