"""Records of each worker's last attempts, made before it votes on them, for a run that ends before it reports them.

A commit comes before its report. A worker, or all of the run, may end between the two; the next start then finds here
the data for the row of that step in metrics.jsonl. Each worker has a file of a fixed size beside its log, made before
training begins, so that writing into it needs no room on the disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypedDict, TypeGuard

from luwu.core.files import unshare

KEPT_ATTEMPTS = 256
"""Attempts in a worker's file. An older one whose row was not written yet loses all data except its number."""

_SLOT_BYTES = 512
"""Bytes of a record: a whole sector, so that a crash never mixes the records of two attempts."""


_COUNTS = ("attempt", "sequences", "tokens", "workers", "step", "bytes_pulled", "bytes_pushed")
_MOST = 1 << 62


class AttemptPart(TypedDict):
    """Part of one worker in an attempt, known before its vote."""

    attempt: int
    loss: float
    sequences: int
    tokens: int
    lr: float
    loss_scale: float | None


class AttemptRecord(AttemptPart):
    """An attempt's part with its place: ``step`` counts committed steps before it, bytes are as in `StepReport`."""

    workers: int
    step: int
    bytes_pulled: int
    bytes_pushed: int


class NotesAttempts(Protocol):
    """Keeps a worker's records where the launcher that has the run finds them, whatever ends the worker."""

    def note(self, record: AttemptRecord) -> None:
        """Take an attempt's record, before the vote on it. Raises OSError."""


class LastAttempts:
    """Writes a worker's file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def note(self, record: AttemptRecord) -> None:
        """Write an attempt's record, before the vote on it. Raises OSError."""
        line = json.dumps(record).encode().ljust(_SLOT_BYTES - 1) + b"\n"
        os.pwrite(self._file, line, record["attempt"] % KEPT_ATTEMPTS * _SLOT_BYTES)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class AttemptsByVote:
    """Sends a worker's records with its votes, to a launcher on another machine, whose server takes both.

    Args:
        send: has the server pass a text on before it takes the next vote.
    """

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send

    def note(self, record: AttemptRecord) -> None:
        """Have an attempt's record travel with the vote on it."""
        self._send(json.dumps(record))


def make_room(path: Path) -> None:
    """Make a worker's file, or keep the existing one. Raises OSError where the disk is full."""
    unshare(path)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(file, 0, KEPT_ATTEMPTS * _SLOT_BYTES)
    finally:
        os.close(file)


def read_last_attempts(paths: Mapping[int, Path]) -> dict[int, list[AttemptRecord]]:
    """Return the records of each attempt that all of its workers have noted, in the order of their ranks.

    Args:
        paths: the workers' files by rank; a file may be missing, or be left from a run with more workers.
    """
    found = {rank: _read(path) for rank, path in paths.items()}
    whole = {}
    for attempt, record in found.get(0, {}).items():
        parts = [found.get(rank, {}).get(attempt) for rank in range(min(record["workers"], len(paths) + 1))]
        present = [part for part in parts if part is not None and part["workers"] == record["workers"]]
        if len(present) == record["workers"]:
            whole[attempt] = present
    return whole


def read_attempts(path: Path) -> list[AttemptRecord]:
    """Return what one worker has noted, in the order of the attempts; nothing where its file is missing."""
    return [record for _, record in sorted(_read(path).items())]


def _read(path: Path) -> dict[int, AttemptRecord]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    records = {}
    for start in range(0, len(content), _SLOT_BYTES):
        try:
            record = json.loads(content[start : start + _SLOT_BYTES])
        except (ValueError, RecursionError):
            continue  # never written, or torn by a power cut
        if is_record(record):
            records[record["attempt"]] = record
    return records


def is_record(found: object) -> TypeGuard[AttemptRecord]:
    """Return true when JSON is a record with all of its numbers, so that a row can be made of it."""
    if not isinstance(found, dict) or not found.keys() >= AttemptRecord.__annotations__.keys():
        return False
    counts = [found[name] for name in _COUNTS]
    return (
        all(isinstance(count, int) and 0 <= count < _MOST for count in counts)
        and min(found["workers"], found["sequences"]) > 0
        and all(isinstance(found[name], int | float) for name in ("loss", "lr"))
        and isinstance(found["loss_scale"], int | float | None)
    )
