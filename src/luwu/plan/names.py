"""Presets by name: an unknown one is answered with those near it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from luwu.core.errors import ConfigError

ValueT = TypeVar("ValueT")


def find_preset(kind: str, name: str, presets: Mapping[str, ValueT], also: str = "") -> ValueT:
    """Return the preset of this name in any case.

    ConfigError names those near it, or all; ``also``: other valid words.
    """
    wanted = name.lower()
    if wanted in presets:
        return presets[wanted]
    near = difflib.get_close_matches(wanted, presets, n=4, cutoff=0.4)
    known = f"near it: {', '.join(near)}" if near else f"those known: {', '.join(presets)}"
    raise ConfigError(f"{kind}: expected a known name, found {name!r}; {known}" + (f"; or {also}" if also else ""))
