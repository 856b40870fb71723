"""Training with the server embedded, clipped or not. Settings: as ours/train.py, and max_grad_norm (or none).

A sample is in a steady state: it begins after one step that is not timed, because a step's updates run during the next
one, too. Bytes are counted from one moment at which all is on the disk to the next.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from kit.child import serve, settings, take_stdout
from worker import Trainer

import luwu


class Clipping:
    """A trainer and the server in this process."""

    def __init__(self, wanted: dict[str, Any], session: Any) -> None:
        self._session = session
        self._steps = wanted["steps"]
        self._trainer = Trainer(wanted, session)

    def sample(self) -> dict[str, Any]:
        """Seconds, norms and losses of `steps` steps, and bytes that a step moved between store and memory."""
        before = self._quiet()
        first = self._trainer.step()
        timed = self._trainer.timed(self._steps, wait="answer")
        after = self._quiet()
        steps = self._steps + 1
        moved = {name: (after[name] - before[name]) / steps for name in ("bytes_read", "bytes_written")}
        counts = {name: after[name] - before[name] for name in ("clipped", "redone")}
        return {**timed, **moved, **counts, "losses": [first["loss"], *timed["losses"]]}

    def _quiet(self) -> dict[str, Any]:
        self._session.wait_durable()
        return dict(self._session.server.stats())


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    torch.set_num_threads(wanted["threads"])
    with (
        tempfile.TemporaryDirectory(dir=wanted["folder"], prefix="luwu-") as folder,
        luwu.open(Path(folder) / "run", memory=wanted["memory"], rank=0, workers=1) as session,
    ):
        clipping = Clipping(wanted, session)
        clipping.sample()
        serve(replies, clipping.sample)


if __name__ == "__main__":
    main()
