"""A trace of a real run for Perfetto: the records of its processes on one clock, as tracks, flows and counters.

A server's tracks are those of `luwu simulate --trace`, so that the two can be compared. Pure but for `write_run_trace`
and `require_writable`.
"""

from __future__ import annotations

import errno
import os
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from luwu.control import control_pb2 as pb
from luwu.core import perfetto
from luwu.core.errors import ConfigError, ServerError
from luwu.core.perfetto import Counter, Flow, Slice
from luwu.core.trace import NOBODY, NONE, RECORD, Kind
from luwu.observe.block_ways import flows_of
from luwu.observe.profile_tracks import profile_slices
from luwu.observe.spans import Span, seconds_of

SERVER_TRACKS = {
    Kind.READ: ("1 read", "block"),
    Kind.HAND_OUT: ("2 hand out", "block"),
    Kind.COLLECT: ("3 collect", "block"),
    Kind.KEEP: ("3 keep", "block"),
    Kind.READ_STATES: ("4 read states", "block"),
    Kind.READ_KEPT: ("4 read states", "gradient of"),
    Kind.UPDATE: ("5 update", "block"),
    Kind.CHECKSUM: ("5 update", "checksum of"),
    Kind.COPY_RECORD: ("5 update", "copy of"),
    Kind.WRITE: ("6 write", "block"),
    Kind.WRITE_KEPT: ("6 write", "gradient of"),
    Kind.COMMIT: ("commit", "step"),
    Kind.ROLL_BACK: ("commit", "roll back step"),
    Kind.SUM: ("sums", "block"),
}
"""Track of each kind of a server's or switch's records, and a word before the step, or the block's name."""

WORKER_NAMES = {
    Kind.STEP: "step",
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.PULL: "pull",
    Kind.PUSH: "push",
    Kind.END: "end of step",
}
"""Names of a worker's records."""

WINDOWS = 200
"""Spans of time for which a trace has the rates of the disks."""

_KINDS = frozenset(Kind)
_ROW = re.compile(r"(.*) \((\d+)\)")
_READS = (Kind.READ, Kind.READ_STATES, Kind.READ_KEPT)
_WRITES = (Kind.WRITE, Kind.WRITE_KEPT)
_LEAST_NS = 1.0  # of a slice, which a flow must find


@dataclass(frozen=True)
class RunEvents:
    """A trace as `luwu.core.perfetto` writes it."""

    tracks: Sequence[str]
    slices: Sequence[Slice]
    flows: Sequence[Flow]
    counters: Sequence[Counter]
    about: Mapping[str, Any]


def require_writable(path: Path) -> None:
    """Raise ConfigError where `write_run_trace` could not write, before there is a trace to lose. It writes nothing."""
    try:
        found = _why_not_writable(path)
    except OSError as error:  # a folder on the way to it cannot be searched
        raise _not_written(path, error) from None
    if found:
        raise _not_written(path, OSError(found, os.strerror(found)))


def _why_not_writable(path: Path) -> int:
    """Return the number of the error that writing a file would have, 0 for none; raises OSError."""
    folder = path.parent
    if path.is_dir():
        return errno.EISDIR
    if not folder.is_dir():
        return errno.ENOTDIR if folder.exists() else errno.ENOENT
    return 0 if os.access(path if path.exists() else folder, os.W_OK) else errno.EACCES


def _not_written(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"output: {path}: cannot be written: {error.strerror}; choose another file")


def write_run_trace(trace: pb.RunTrace, path: Path, run: str) -> RunEvents:
    """Write the trace of the run of this name; return what was written. ConfigError: the file cannot be written."""
    made = make_events(trace)
    try:
        perfetto.write_trace(path, f"luwu run {run}", made.tracks, made.slices, made.flows, made.counters, made.about)
    except OSError as error:
        raise _not_written(path, error) from None
    return made


def make_events(trace: pb.RunTrace) -> RunEvents:
    """Make tracks, slices, flows and counters of a trace; raises ServerError where its records are none."""
    names = _block_names(trace)
    found = with_steps(list(spans_of(trace, names)))
    spans = [span for span in found if trace.first_step <= span.step <= trace.last_step]
    profiled = list(profile_slices(trace.processes))
    noted = [counts.at_ns + process.clock_ns for process in trace.processes for counts in process.packets]
    zero = min([*noted, *(span.begin for span in spans), *(each.begin for each in profiled)], default=0)
    placed = list(lay_out(spans))
    slices = [_slice(span, track, names, zero) for span, track in placed]
    slices += [
        Slice(each.track, each.name, seconds_of(each.begin, zero), seconds_of(each.end, zero)) for each in profiled
    ]
    tracks = sorted({each.track for each in slices}, key=_track_order)
    flows = list(flows_of(placed, names, zero))
    counters = [*disk_rates(spans, zero), *packet_counts(trace, zero)]
    return RunEvents(tracks, slices, flows, counters, _about(trace))


def spans_of(trace: pb.RunTrace, names: Sequence[str]) -> Iterator[Span]:
    """Return the records of all processes on the server's clock, blocks by their places in ``names``.

    Raises:
        ServerError: they are no records of this version.
    """
    numbers = {name: number for number, name in enumerate(names)}
    for process in trace.processes:
        if len(process.records) % RECORD.itemsize:
            raise ServerError(f"trace: expected records of {RECORD.itemsize} bytes from {process.name}, found a part")
        own = [numbers[name] for name in process.blocks]
        rank = int(process.name.rpartition(" ")[2]) if process.name.startswith("worker") else None
        for begin, end, nbytes, step, block, chunk, worker, kind in np.frombuffer(process.records, RECORD).tolist():
            if kind not in _KINDS or (block != NONE and block >= len(own)):
                raise ServerError(
                    f"trace: expected records of this version from {process.name}, found kind {kind} of block {block}; "
                    "install the server's version of luwu"
                )
            yield Span(
                process.name,
                process.server or ("" if process.name.startswith("worker") else process.name),
                Kind(kind),
                begin + process.clock_ns,
                end + process.clock_ns,
                step,
                None if block == NONE else own[block],
                None if chunk == NONE else chunk,
                rank if worker == NOBODY else worker,
                nbytes,
            )


def with_steps(spans: Sequence[Span]) -> Iterator[Span]:
    """Return the spans, those of switches with their steps: a sum begins while a worker is in its step.

    A switch does not know the step. What began while no worker was in a step that is traced is left out.
    """
    times: dict[int, tuple[int, int]] = {}  # from the first worker's begin to the last one's end
    for span in spans:
        if span.kind is Kind.STEP:
            begin, end = times.get(span.step, (span.begin, span.end))
            times[span.step] = min(begin, span.begin), max(end, span.end)
    steps = sorted((begin, end, step) for step, (begin, end) in times.items())
    begins = [begin for begin, _, _ in steps]
    for span in spans:
        if span.kind is not Kind.SUM:
            yield span
            continue
        place = bisect_right(begins, span.begin) - 1
        if place >= 0 and span.begin <= steps[place][1]:
            yield replace(span, step=steps[place][2])


def lay_out(spans: Iterable[Span]) -> Iterator[tuple[Span, str]]:
    """Return each span with its track; a worker's spans lie within each other.

    Spans of a server's track that overlap get tracks beside it, such as ``server 1: 4 read states (2)``.
    """
    by_track: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_track[_track_of(span)].append(span)
    for track, members in by_track.items():
        members.sort(key=lambda span: (span.begin, -span.end))
        ends: list[int] = []
        for span in members:
            row = 0
            if span.kind in SERVER_TRACKS:
                row = next((place for place, end in enumerate(ends) if end <= span.begin), len(ends))
                ends[row : row + 1] = [max(span.end, span.begin + 1)]
            yield span, track if row == 0 else f"{track} ({row + 1})"


def disk_rates(spans: Sequence[Span], zero: int) -> Iterator[Counter]:
    """Return the MB/s that each server's disks read and wrote, in equal windows of the trace's time."""
    until = max((span.end for span in spans), default=zero)
    by_server: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.kind in (*_READS, *_WRITES):
            by_server[span.process].append(span)
    for server, transfers in by_server.items():
        yield from _rates_of(_counter_name(server, by_server, "disk MB/s"), transfers, zero, until)


def _rates_of(name: str, transfers: Sequence[Span], zero: int, until: int) -> Iterator[Counter]:
    width = max(1.0, (until - zero) / WINDOWS)
    edges = zero + width * np.arange(WINDOWS + 1)
    moved = {"read": np.zeros(WINDOWS), "written": np.zeros(WINDOWS)}
    for span in transfers:
        share = np.clip(np.minimum(edges[1:], span.end) - np.maximum(edges[:-1], span.begin), 0, None)
        whole = share.sum()
        if whole > 0:
            moved["read" if span.kind in _READS else "written"] += span.nbytes * share / whole
    for window in range(WINDOWS):
        rates = {which: round(float(values[window]) / width * 1e3, 3) for which, values in moved.items()}
        yield Counter(name, seconds_of(edges[window], zero), rates)
    yield Counter(name, seconds_of(edges[-1], zero), {"read": 0.0, "written": 0.0})


def packet_counts(trace: pb.RunTrace, zero: int) -> Iterator[Counter]:
    """Return the packets that servers and switches have received, sent and sent again since the trace began."""
    counted = [process.name for process in trace.processes if process.packets]
    for process in trace.processes:
        for counts in process.packets:
            first = process.packets[0]
            values = {
                "received": counts.came - first.came,
                "sent": counts.sent - first.sent,
                "sent again": counts.resent - first.resent,
            }
            name = _counter_name(process.name, counted, "packets")
            yield Counter(name, seconds_of(counts.at_ns + process.clock_ns, zero), values)


def _counter_name(process: str, all_of_them: Collection[str], name: str) -> str:
    """Return a counter's name, with the process in front where several have such a counter."""
    return name if len(all_of_them) == 1 else f"{process}: {name}"


def _block_names(trace: pb.RunTrace) -> list[str]:
    """Return the names of all blocks; a worker knows all of them, one of several servers perhaps not."""
    longest = max((list(process.blocks) for process in trace.processes), key=len, default=[])
    return list(dict.fromkeys([*longest, *(name for process in trace.processes for name in process.blocks)]))


def _track_of(span: Span) -> str:
    if span.kind not in SERVER_TRACKS:
        return span.process
    return f"{span.process}: {SERVER_TRACKS[span.kind][0]}"


def _track_order(track: str) -> tuple[int, int, str, int]:
    """Sort a server's tracks by its steps, then switches by their names, and workers by their ranks."""
    base, row = match.groups() if (match := _ROW.fullmatch(track)) else (track, None)
    process, _, part = base.partition(": ")
    kind, _, name = process.partition(" ")
    place = ("server", "switch", "worker").index(kind)
    number, rest = (0, base) if kind == "switch" else (int(name), part)
    return place, number, rest, int(row or 1)


def _slice(span: Span, track: str, names: Sequence[str], zero: int) -> Slice:
    details: dict[str, Any] = {"step": span.step}
    if span.block is not None:
        details["block"] = names[span.block]
    if span.chunk is not None:
        details["chunk"] = span.chunk
    if span.kind in SERVER_TRACKS and span.worker is not None:
        details["worker"] = span.worker
    if span.nbytes:
        details["bytes"] = span.nbytes
    end = max(float(span.end), span.begin + _LEAST_NS)
    return Slice(track, _name_of(span, names), seconds_of(span.begin, zero), seconds_of(end, zero), details)


def _name_of(span: Span, names: Sequence[str]) -> str:
    word = SERVER_TRACKS[span.kind][1] if span.kind in SERVER_TRACKS else WORKER_NAMES[span.kind]
    if span.kind in (Kind.COMMIT, Kind.ROLL_BACK, Kind.STEP):
        return f"{word} {span.step}"
    if span.block is None:
        return word
    return names[span.block] if word == "block" else f"{word} {names[span.block]}"


def _about(trace: pb.RunTrace) -> dict[str, Any]:
    about: dict[str, Any] = {
        "first step": trace.first_step,
        "last step": trace.last_step,
        "clock error in nanoseconds": {process.name: process.clock_error_ns for process in trace.processes},
        "records without room": {process.name: process.dropped for process in trace.processes},
        "records that did not come": list(trace.missing),
    }
    profiles = {process.name: process.profile for process in trace.processes if process.HasField("profile")}
    if profiles:
        about["torch.profiler"] = {
            name: {
                "clock error in nanoseconds": profile.clock_error_ns,
                "events without room": profile.dropped,
                "failure": profile.failure,
            }
            for name, profile in profiles.items()
        }
    return about
