"""What each worker knew of its last attempts when it voted on them, for a run that ends before it has reported them.

A commit comes before its report. A worker, or all of the run, may end between the two; the next start then finds here
what the row of that step in metrics.jsonl needs. Each worker has a file of a fixed size beside its log, made before
training begins, so that writing into it needs no room on the disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from luwu.store.own_files import unshare

KEPT_ATTEMPTS = 256
"""A launcher that has not yet written the row of an older attempt loses all but its number."""

_SLOT_BYTES = 512
"""Whole sectors, so that one attempt's record is never half of another's."""


class AttemptPart(TypedDict):
    """One worker's part of an attempt, known before its vote."""

    attempt: int
    loss: float
    sequences: int
    tokens: int
    lr: float
    loss_scale: float | None


class AttemptRecord(AttemptPart):
    """The part, and what it belongs to: ``step`` counts the committed ones before it, bytes are as in `StepReport`."""

    workers: int
    step: int
    bytes_pulled: int
    bytes_pushed: int


class LastAttempts:
    """A worker's file, as the worker writes it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def note(self, record: AttemptRecord) -> None:
        """Write an attempt's record, before the vote on it. Raises OSError."""
        line = json.dumps(record).encode().ljust(_SLOT_BYTES - 1) + b"\n"
        os.pwrite(self._file, line, record["attempt"] % KEPT_ATTEMPTS * _SLOT_BYTES)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def make_room(path: Path) -> None:
    """Make a worker's file, or keep the one that there is. Raises OSError where the disk is full."""
    unshare(path)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(file, 0, KEPT_ATTEMPTS * _SLOT_BYTES)
    finally:
        os.close(file)


def read_last_attempts(paths: Mapping[int, Path]) -> dict[int, list[AttemptRecord]]:
    """The records of each attempt that all of its workers have noted, in the order of their ranks.

    Args:
        paths: the workers' files by rank; one may be missing, and one of a run with more workers may be there.
    """
    found = {rank: _read(path) for rank, path in paths.items()}
    whole = {}
    for attempt, record in found.get(0, {}).items():
        parts = [found.get(rank, {}).get(attempt) for rank in range(record["workers"])]
        present = [part for part in parts if part is not None and part["workers"] == record["workers"]]
        if len(present) == record["workers"]:
            whole[attempt] = present
    return whole


def _read(path: Path) -> dict[int, AttemptRecord]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    records = {}
    for start in range(0, len(content), _SLOT_BYTES):
        try:
            record: AttemptRecord = json.loads(content[start : start + _SLOT_BYTES])
            records[record["attempt"]] = record
        except (ValueError, TypeError, KeyError):
            continue  # never written, or torn by a power cut
    return records
