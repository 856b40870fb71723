"""Trains to a given step in one process that embeds its server, saying every step aloud, to be killed at any moment.

Settings: run, shape, rows, target. Lines: opening, resumed (step), committed (step),
seconds (of all steps), digest (of the final parameters).
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import torch
from child import settings, take_stdout
from worker import Trainer

import luwu


def digest(model: torch.nn.Module) -> str:
    """SHA-256 over all parameters' bits, in the order of their names."""
    found = hashlib.sha256()
    for name, value in sorted(luwu.full_state_dict(model).items()):
        found.update(name.encode())
        found.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()

    def say(**line: Any) -> None:
        replies.write(json.dumps(line) + "\n")

    wanted = settings()
    torch.set_num_threads(1)
    say(opening=True)
    with luwu.open(wanted["run"], memory=wanted["memory"], rank=0, workers=1) as session:
        trainer = Trainer(wanted, session)
        say(resumed=session.step)
        started = time.perf_counter()
        while session.step < wanted["target"]:
            trainer.step()
            say(committed=session.step)
        say(seconds=time.perf_counter() - started, digest=digest(trainer.model))


if __name__ == "__main__":
    main()
