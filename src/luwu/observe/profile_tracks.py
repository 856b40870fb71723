"""Events of torch.profiler in a worker, as tracks of that worker for Perfetto. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from luwu.control import control_pb2 as pb
from luwu.core.errors import ServerError
from luwu.core.profiling import EVENT


@dataclass(frozen=True)
class ProfileSlice:
    """An event on its track; times are of the server's clock, in nanoseconds."""

    track: str
    name: str
    begin: int
    end: int


def profile_slices(processes: Iterable[pb.ProcessTrace]) -> Iterator[ProfileSlice]:
    """Return the events of the processes that have a profile.

    Events of one thread lie within each other; those of a device that overlap get tracks beside the first.

    Raises:
        ServerError: they are no events of this version.
    """
    for process in processes:
        if not process.profile.events:
            continue
        if len(process.profile.events) % EVENT.itemsize:
            raise _other_version(process, "a part")
        names, tracks = process.profile.names, process.profile.tracks
        open_ends: dict[str, list[list[int]]] = {track: [] for track in tracks}
        found = np.frombuffer(process.profile.events, EVENT).tolist()
        for begin, end, name, track in sorted(found, key=lambda event: (event[0], -event[1])):
            if name >= len(names) or track >= len(tracks):
                raise _other_version(process, f"name {name} on track {track}")
            row = _row_of(open_ends[tracks[track]], begin, end)
            shown = f"{process.name}: torch.profiler, {tracks[track]}"
            yield ProfileSlice(
                shown if row == 0 else f"{shown} ({row + 1})",
                names[name],
                begin + process.clock_ns,
                end + process.clock_ns,
            )


def _row_of(rows: list[list[int]], begin: int, end: int) -> int:
    """Return the first row where an event lies after the others, or within one. Each row has the ends of open ones."""
    for number, ends in enumerate(rows):
        while ends and ends[-1] <= begin:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            return number
    rows.append([end])
    return len(rows) - 1


def _other_version(process: pb.ProcessTrace, found: str) -> ServerError:
    return ServerError(
        f"trace: expected events of torch.profiler from {process.name} as this version has them, found {found}; "
        "install the server's version of luwu"
    )
