"""The end of a run in words. Pure."""

from __future__ import annotations

import time


def ended_words(step: int | None, steps: object, at: float | None) -> str:
    """Return when and how a run that is not under way ended, as a clause without its subject and full stop.

    Args:
        step: its last committed step; None: it has made none.
        steps: the steps that it is to make, as its settings say; other than a number: nobody knows.
        at: time of its last row, in seconds since the epoch; None: it has none.
    """
    if step is None or at is None:
        return "is not under way; its folder tells no steps"
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    if not isinstance(steps, int):
        return f"ended on {clock} after step {step:,}"
    if step >= steps:
        return f"ended on {clock} after all of its {steps:,} steps"
    return f"ended on {clock} after step {step:,} of {steps:,}, and goes on from there when it is started again"
