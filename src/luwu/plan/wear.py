"""Wear of the disks of a server: bytes that training writes, beside those that a disk may take in its life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from luwu.core.units import bytes_text, count_text, seconds_text

DAY_SECONDS = 86400


@dataclass(frozen=True)
class Wear:
    """Wear of each disk of a server, which the store is striped over.

    Attributes:
        step_bytes: bytes that a step writes to it.
        step_seconds: time of a step.
        endurance_bytes: bytes that it may take by its data sheet; None: not given.
    """

    step_bytes: float
    step_seconds: float
    endurance_bytes: float | None = None

    @property
    def day_bytes(self) -> float:
        """Bytes written to it in a day of training."""
        return self.step_bytes / self.step_seconds * DAY_SECONDS

    @property
    def life_days(self) -> float | None:
        """Days of training until it is worn out; None: its endurance is not given, or nothing is written."""
        if self.endurance_bytes is None or not self.day_bytes:
            return None
        return self.endurance_bytes / self.day_bytes

    def share(self, written: float) -> float | None:
        """Return the share of its endurance that bytes written to it use up; None: its endurance is not given."""
        return None if self.endurance_bytes is None else written / self.endurance_bytes

    def rows(self, tokens: float | None, days: float | None) -> list[tuple[str, str]]:
        """Return the rows of a plan: names and values as text.

        Args:
            tokens: budget of tokens; None: there is none.
            days: days that the budget takes.
        """
        rows = [("written a day", bytes_text(self.day_bytes))]
        if tokens is not None and days is not None:
            written = self.day_bytes * days
            share = self.share(written)
            words = "" if share is None else f", {_times(share)} its endurance"
            rows.append((f"{count_text(tokens)} tokens", f"{bytes_text(written)} written{words}"))
        if self.life_days is not None and self.endurance_bytes is not None:
            life, endurance = seconds_text(DAY_SECONDS * self.life_days), bytes_text(self.endurance_bytes)
            rows.append(("worn out", f"after {life} of training, by its endurance of {endurance}"))
        return rows

    def as_json(self) -> dict[str, Any]:
        """Return it as plain numbers: bytes and days."""
        return {"day_bytes": self.day_bytes, "endurance_bytes": self.endurance_bytes, "life_days": self.life_days}


def _times(share: float) -> str:
    return f"{share:,.1f} times" if share >= 1 else f"{share:.1%} of"
