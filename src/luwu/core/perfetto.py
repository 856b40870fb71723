"""Traces as ui.perfetto.dev (and Chrome) opens them: tracks of slices, flows between slices, and counters."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from luwu.core.files import replaced_file, unfinished, write_all

PROCESS = 1


@dataclass(frozen=True)
class Slice:
    """An activity on a track. Slices of one track lie one after the other, or within each other. Times in seconds."""

    track: str
    name: str
    start: float
    end: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Flow:
    """A way through slices, in the order of time: each point is a track, and a time in seconds within a slice there."""

    name: str
    points: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Counter:
    """Values at a time in seconds, by what they are of."""

    name: str
    time: float
    values: Mapping[str, float]


def write_trace(
    path: Path,
    process: str,
    tracks: Sequence[str],
    slices: Sequence[Slice],
    flows: Sequence[Flow] = (),
    counters: Sequence[Counter] = (),
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a trace, compressed where the file's name ends in ``.gz``; raises OSError.

    A file that is there stays as it is until the new one is whole.

    Args:
        path: the file.
        process: name of what is traced, which heads the tracks.
        tracks: names of all tracks, in the order in which they are shown.
        slices: slices of the tracks.
        flows: ways through them.
        counters: counters beside them.
        about: facts of the whole trace, as JSON can hold them.
    """
    found = events(process, tracks, slices, flows, counters)
    document: dict[str, Any] = {"traceEvents": found, "displayTimeUnit": "ms"}
    if about:
        document["otherData"] = dict(about)
    text = json.dumps(document).encode()
    _write(path, gzip.compress(text, compresslevel=3) if path.suffix == ".gz" else text)


def _write(path: Path, content: bytes) -> None:
    target = path.resolve()  # a link stays one
    if (target.exists() and not target.is_file()) or not os.access(target.parent, os.W_OK):
        target.write_bytes(content)  # a pipe or a device, or a folder that takes no new file beside it
        return
    with replaced_file(target, unfinished(target)) as file:
        write_all(file, content)


def events(
    process: str,
    tracks: Sequence[str],
    slices: Sequence[Slice],
    flows: Sequence[Flow] = (),
    counters: Sequence[Counter] = (),
) -> list[dict[str, Any]]:
    """Return the events of Chrome's format: times in microseconds, a track is a thread."""
    numbers = {track: number for number, track in enumerate(tracks, start=1)}
    found = [_about_thread("process_name", 0, {"name": process})]
    for track, number in numbers.items():
        found.append(_about_thread("thread_name", number, {"name": track}))
        found.append(_about_thread("thread_sort_index", number, {"sort_index": number}))
    for each in slices:
        event = _event("X", each.name, numbers[each.track], each.start)
        event["dur"] = _microseconds(each.end - each.start)
        if each.details:
            event["args"] = dict(each.details)
        found.append(event)
    for identity, flow in enumerate(flows, start=1):
        last = len(flow.points) - 1
        for place, (track, at) in enumerate(flow.points):
            event = _event("s" if place == 0 else "f" if place == last else "t", flow.name, numbers[track], at)
            found.append(event | {"cat": "block", "id": identity, "bp": "e"})
    for counter in counters:
        found.append(_event("C", counter.name, 0, counter.time) | {"args": dict(counter.values)})
    return found


def _event(kind: str, name: str, thread: int, at: float) -> dict[str, Any]:
    return {"name": name, "ph": kind, "pid": PROCESS, "tid": thread, "ts": _microseconds(at)}


def _about_thread(name: str, thread: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": PROCESS, "tid": thread, "args": values}


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)
