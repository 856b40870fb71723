"""Commit points: how often a server puts the steps that it has made on the disk."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from luwu.core.errors import ConfigError
from luwu.core.quantities import LONGEST_SECONDS, shown

MOST_STEPS = 2**53
"""Bound of steps between two commit points, like `luwu.core.quantities.Count`."""

SECONDS_OF = {"s": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600}


class CommitPoints(NamedTuple):
    """Steps that are made durable: every ``steps`` steps, and the first after ``seconds`` seconds without one.

    0 stands for no such step. The end of a run is a commit point in any case.
    """

    steps: int = 1
    seconds: float = 0.0


EACH_STEP = CommitPoints()


def parse_durable(value: object, name: str = "") -> CommitPoints:
    """Return the commit points that a text asks for: ``step``, ``10 steps``, ``5 min`` or ``stop``.

    Args:
        value: the text.
        name: begins an error's message, as in ``durable: expected``.

    Raises:
        ConfigError: the text is none of these, or its number is not in range.
    """
    text = " ".join(value.split()) if isinstance(value, str) else ""
    if text == "step":
        return EACH_STEP
    if text == "stop":
        return CommitPoints(0, 0.0)
    match = re.fullmatch(r"(\d{1,16}(?:\.\d{1,9})?) ?([a-z]+)", text, re.ASCII)
    if match is not None:
        number, unit = match[1], match[2] if match[2] == "s" else match[2].removesuffix("s")
        if unit == "step" and "." not in number and 1 <= int(number) <= MOST_STEPS:
            return CommitPoints(int(number), 0.0)
        if 0 < (seconds := float(number) * SECONDS_OF.get(unit, 0)) <= LONGEST_SECONDS:
            return CommitPoints(0, seconds)
    raise ConfigError(
        f"{name}expected step, a number of steps such as '10 steps', a time such as '30 s', '5 min' or '2 h', or stop; "
        f"found {shown(value)}"
    )


def _checked(text: str) -> str:
    parse_durable(text)
    return " ".join(text.split())


Durable = Annotated[str, AfterValidator(_checked)]
"""Text that `parse_durable` reads."""
