"""Damage that was met when a store was opened, and that opening it for writing mends: how it is said."""

from __future__ import annotations

import logging
from typing import Protocol

from luwu.core import native

_logger = logging.getLogger(__name__)

MENDED_BY = "luwu train, luwu server and luwu snapshot take mend it when they open the store"
"""The way out of damage that opening a store for writing mends."""

OTHER_TIME = "is of a copy from another time"
"""Part of the finding about a folder of another copy. Opening cannot mend it: the user named the wrong folder."""


class Opened(Protocol):
    """A native reader, writer or server that has opened a store."""

    @property
    def findings(self) -> list[str]:
        """Damage that was found and that opening the store for writing mends, in words."""
        ...


def say_findings(opened: Opened, *, mended: bool = True) -> None:
    """Log the damage that was met when a store was opened; who only reads has not mended it."""
    for finding in opened.findings:
        _logger.warning("%s", f"{finding}; it is mended now" if mended else _with_remedy(finding))


def findings_of(reader: native.StoreReader) -> tuple[str, ...]:
    """The damage that a reader met, each with what mends it."""
    return tuple(map(_with_remedy, reader.findings))


def _with_remedy(finding: str) -> str:
    """Return a finding with what mends it; a snapshot is never written to."""
    if OTHER_TIME in finding:
        return finding
    return f"{finding}; {'the snapshot can be read and restored as it is' if '/snapshots/' in finding else MENDED_BY}"
