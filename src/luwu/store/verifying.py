"""Reads all of a store's committed step and compares every checksum."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luwu.core import native
from luwu.core.errors import StoreCorruptError, StoreError, StoreFormatError
from luwu.core.manifest import Manifest
from luwu.store.findings import findings_of
from luwu.store.folders import no_values
from luwu.store.opening import held_at_rest, reader_of
from luwu.store.origin import require_model_files
from luwu.store.run_record import read_record
from luwu.store.values import Progress, no_progress, require_identity

READS_AHEAD = 4
"""Chunks that `verify` has in memory at once."""


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`: ``first_damage`` describes the first of the ``damaged`` chunks.

    ``findings`` is damage to the commit records, to the version that is not committed, to run.json, to origin.json and
    to an imported model's files, in words, each with what to do.
    """

    step: int
    chunks: int
    nbytes: int
    seconds: float
    damaged: int
    first_damage: str
    findings: tuple[str, ...]


def verify(folders: list[Path], progress: Progress = no_progress) -> VerifyReport:
    """Read everything that the committed step consists of, and compare every checksum.

    Args:
        folders: of a store at rest.
        progress: of bytes read.

    Raises:
        StoreFormatError: there is no store. StoreEmptyError: it has no values yet. StoreLockedError: a server has it
            open.
        StoreCorruptError: what lies around the chunks is damaged, so that no chunk can be found.
    """
    identity = require_identity(folders)
    with held_at_rest(folders), ThreadPoolExecutor(READS_AHEAD, "luwu-verify") as pool:
        reader = reader_of(folders, identity)
        if not reader.initialised:
            raise no_values(folders[0])
        extents = list(_extents(reader, identity.manifest))
        total = sum(nbytes for _, _, nbytes in extents)
        waiting: deque[tuple[Future[Any], int]] = deque()
        damages: list[str] = []
        done, begun = 0, time.perf_counter()

        def take_one() -> None:
            nonlocal done
            future, nbytes = waiting.popleft()
            try:
                future.result()
            except (StoreCorruptError, StoreFormatError, StoreError) as error:
                damages.append(str(error))
            done += nbytes
            progress(done, total)

        for block, chunk, nbytes in extents:
            if len(waiting) == READS_AHEAD:
                take_one()
            waiting.append((pool.submit(_look_at, reader, block, chunk), nbytes))
        while waiting:
            take_one()
        seconds = time.perf_counter() - begun
    return VerifyReport(
        int(reader.step),
        len(extents),
        total,
        seconds,
        len(damages),
        damages[0] if damages else "",
        (*findings_of(reader), *_damaged_documents(folders[0])),
    )


def _damaged_documents(folder: Path) -> Iterator[str]:
    try:
        read_record(folder)
    except (StoreCorruptError, StoreFormatError) as error:
        yield str(error)
    try:
        require_model_files(folder)
    except StoreCorruptError as error:
        yield str(error)


def _look_at(reader: native.StoreReader, block: int, chunk: int) -> None:
    reader.read_chunk(block, chunk, True)  # and let go of what was read


def _extents(reader: native.StoreReader, manifest: Manifest) -> Iterator[tuple[int, int, int]]:
    """(block, chunk, bytes of its record) of every chunk."""
    for number in range(len(manifest.blocks)):
        for chunk, nbytes in enumerate(reader.record_bytes(number)):
            yield number, chunk, nbytes
