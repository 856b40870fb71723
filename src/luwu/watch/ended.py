"""The end of a run in words. Pure."""

from __future__ import annotations

import time


def ended_words(step: int | None, steps: object, at: float | None, *, failed: bool = False) -> str:
    """Return when and how a run that is not under way ended, as a clause without its subject and full stop.

    Args:
        step: its last committed step; None: it has made none.
        steps: the steps that it is to make, as its settings say; other than a number: nobody knows.
        at: time of its end, in seconds since the epoch; None: nobody knows.
        failed: it has ended with an error, or before its last step although nobody stopped it.
    """
    if step is None or at is None:
        return "has failed; its folder tells no steps" if failed else "is not under way; its folder tells no steps"
    ended = "failed" if failed else "ended"
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    if not isinstance(steps, int):
        return f"{ended} on {clock} after step {step:,}"
    if step >= steps:
        return f"{ended} on {clock} after all of its {steps:,} steps"
    return f"{ended} on {clock} after step {step:,} of {steps:,}, and goes on from there when it is started again"
