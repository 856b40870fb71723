"""Rates of this machine's disk and processors for a server, measured by the server's own engine and kernels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from luwu.core import native
from luwu.core.errors import StoreSpaceError
from luwu.core.units import bytes_text
from luwu.probe.machine import nearest_existing
from luwu.store.folders import make_folder

FILE_BYTES = 1 << 30
"""Bytes of the file that a disk is measured with: more than most disks' own caches take at this pace."""


@dataclass(frozen=True)
class DiskRates:
    """Bytes a second: read alone, written alone, and both together in an update's proportion.

    ``processor_seconds_per_byte`` is what moving a byte costs; ``direct``: it went past the page cache.
    ``shared_read_rate`` and ``shared_processor_seconds_per_byte`` are of reads into memory that processes share, as
    parameters are read: without huge pages, which systems seldom give it, they may be slower.
    """

    read_rate: float
    write_rate: float
    mixed_rate: float
    processor_seconds_per_byte: float
    direct: bool
    shared_read_rate: float
    shared_processor_seconds_per_byte: float


def measure_disk(folder: Path, *, read_bytes: int, write_bytes: int, seconds: float) -> DiskRates:
    """Measure the disk below a folder, four ways, each for ``seconds``; nothing stays there.

    Args:
        folder: need not exist yet.
        read_bytes: bytes of a chunk's states, as an update out of core reads them.
        write_bytes: bytes of a chunk's record, as every update writes it.
        seconds: for each way.

    Raises:
        StorePermissionError, StoreSpaceError, StoreError: the folder cannot be measured.
    """
    existing = nearest_existing(folder)
    make_folder(existing)
    free = os.statvfs(existing)
    room = free.f_bavail * free.f_frsize
    if room < FILE_BYTES:
        raise StoreSpaceError(
            f"measuring the disk needs a file of {bytes_text(FILE_BYTES)} in {existing}, but its disk has "
            f"{bytes_text(room)} free; free some space or name another folder with --store"
        )
    probe = native.DiskProbe(str(existing), FILE_BYTES)
    written = probe.run(0, write_bytes, seconds)
    read = probe.run(read_bytes, 0, seconds)
    shared = probe.run(read_bytes, 0, seconds, shared=True)
    mixed = probe.run(read_bytes, write_bytes, seconds)
    moved = mixed["bytes_read"] + mixed["bytes_written"]
    return DiskRates(
        read_rate=read["bytes_read"] / read["seconds"],
        write_rate=written["bytes_written"] / written["seconds"],
        mixed_rate=moved / mixed["seconds"],
        processor_seconds_per_byte=mixed["processor_seconds"] / moved,
        direct=probe.direct,
        shared_read_rate=shared["bytes_read"] / shared["seconds"],
        shared_processor_seconds_per_byte=shared["processor_seconds"] / shared["bytes_read"],
    )


def measure_update(optimizer: str, dtype: str, workers: int, *, verify: bool, seconds: float) -> float:
    """Elements a second that the update kernel takes on all processors together.

    Args:
        optimizer: its kind in manifests.
        dtype: dtype of parameters and gradients.
        workers: whose gradients are added up.
        verify: checksums of states that came from the disk are worked out, too.
        seconds: duration of the measurement.
    """
    return native.measure_update(optimizer, dtype, workers, len(os.sched_getaffinity(0)), verify, seconds)
