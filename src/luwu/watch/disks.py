"""Work of the disks that a run's store lies on, from the kernel's counts; empty where the kernel has none of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SECTOR_BYTES = 512
"""Unit of the kernel's counts, whatever the disk's own sectors are."""

_READ_SECTORS, _WRITTEN_SECTORS, _IN_FLIGHT = 2, 6, 8


@dataclass(frozen=True)
class DiskCounts:
    """Counts of a disk: bytes since the system was started, and requests that are under way."""

    read_bytes: int
    written_bytes: int
    queue: int


def disk_of(folder: Path) -> str | None:
    """Return the kernel's number of the disk that a folder lies on, ``major:minor``; None: there is no such folder."""
    try:
        device = folder.stat().st_dev
    except (OSError, ValueError):  # a damaged setting may have a name that no folder can have
        return None
    return f"{os.major(device)}:{os.minor(device)}"


def read_disk(number: str, root: Path = Path("/sys/dev/block")) -> tuple[str, DiskCounts] | None:
    """Return the name and the counts of a disk; None where the kernel has none, as of a network's file system."""
    try:
        fields = [int(field) for field in (root / number / "stat").read_text().split()]
        name = (root / number).resolve().name
        counts = DiskCounts(
            fields[_READ_SECTORS] * SECTOR_BYTES, fields[_WRITTEN_SECTORS] * SECTOR_BYTES, fields[_IN_FLIGHT]
        )
    except (OSError, ValueError, IndexError):
        return None
    return name, counts


def look_at_disks(folders: Iterable[Path]) -> dict[str, DiskCounts]:
    """Return the counts of the disks of some folders, by the disk's name; each disk once."""
    numbers = {number for folder in folders if (number := disk_of(folder)) is not None}
    return dict(sorted(found for number in numbers if (found := read_disk(number)) is not None))


def identify_disk(folder: Path) -> tuple[str, str] | None:
    """Return the number of a folder's disk, and its name, empty where the kernel has none; None: no folder."""
    number = disk_of(folder)
    if number is None:
        return None
    found = read_disk(number)
    return number, "" if found is None else found[0]
