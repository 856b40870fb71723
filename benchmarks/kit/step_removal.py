"""A rule of the step machine that a control takes out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Removal:
    """A rule: the file that has it, its code, and the code without it."""

    name: str
    file: str
    old: str
    new: str
