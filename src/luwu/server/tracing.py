"""A trace of a run: the server's own records, and those that its workers send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import TIMEOUTS
from luwu.core.errors import ConfigError, ServerError, StepOrderError
from luwu.core.trace import RECORD
from luwu.core.words import counted

MOST_STEPS = 1000
LEAST_BYTES = 1 << 16
MOST_BYTES = 1 << 30
"""Bounds of what may be asked for: attempts at steps, and bytes of records of a process."""

MOST_PROFILED_STEPS = 20
"""Most attempts of a trace with a profile: the memory that torch.profiler takes in the worker grows with them."""

PIECE_BYTES = 4 << 20
"""Bytes of a trace in one message."""

_TABLE_BYTES = 1 << 20  # of the names in a profile, and of the pieces' frames


class TracingCore(Protocol):
    """A native server, as far as its traces need it."""

    def start_trace(self, attempts: int, most_records: int, most_of_worker: int) -> None:
        """Record the next attempts at steps; raises StepOrderError where that is under way already."""
        ...

    def end_trace(self) -> None:
        """Record no attempt that has not begun yet."""
        ...

    def give_trace_up(self) -> None:
        """Record no more, and forget what was recorded."""
        ...

    def take_trace(self) -> tuple[bytes, int, int, int] | None:
        """Return records, the number of dropped ones, and the first and the last step; None: they are not there yet."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counts since the store was opened."""
        ...

    @property
    def trace_request(self) -> tuple[int, bool]:
        """Request for the workers' records of the attempt under way: the most, and whether the trace ends with it."""
        ...


@dataclass
class _Trace:
    """A trace that is being made.

    ``waits`` are the workers whose records are still to come, ``profiled`` is the one that has a profile, too.
    """

    worker_bytes: int
    profile_bytes: int
    profiled: int | None
    waits: set[int]
    asked_at: float
    server: tuple[bytes, int, int, int] | None = None
    recorded_at: float = 0.0
    pieces: dict[int, list[pb.TraceRecordsRequest]] = field(default_factory=dict)
    packets: list[pb.PacketCounts] = field(default_factory=list)
    content: bytes | None = None


class RunTracing:
    """Traces of one run, one after the other. Functions may be called from any thread.

    Args:
        clock: time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._trace: _Trace | None = None

    def start(
        self, core: TracingCore, workers: Iterable[int], steps: int, most_bytes: int, profiled: int | None = None
    ) -> None:
        """Begin a trace; the one before it is forgotten, and given up if nobody asks for it any more.

        Args:
            core: the native server.
            workers: ranks of the run's workers.
            steps: attempts at steps that it has.
            most_bytes: most bytes of the server's records, and of what all workers together send.
            profiled: worker that sends a profile, which then may have half of the workers' bytes; None: none does.

        Raises:
            ConfigError: a number that is out of its range. StepOrderError: another trace is under way.
        """
        waits = set(workers)
        most_steps, with_profile = (MOST_STEPS, "") if profiled is None else (MOST_PROFILED_STEPS, " with a profile")
        if not 1 <= steps <= most_steps:
            raise ConfigError(f"steps: expected 1 to {most_steps}{with_profile}, found {steps}")
        if profiled is not None and profiled not in waits:
            raise ConfigError(f"profile-worker: expected 0 to {len(waits) - 1}, found {profiled}")
        if not LEAST_BYTES <= most_bytes <= MOST_BYTES:
            raise ConfigError(f"limit: expected {LEAST_BYTES} to {MOST_BYTES} bytes, found {most_bytes}")
        with self._lock:
            now = self._clock()
            if self.under_way:
                assert self._trace is not None
                if now - self._trace.asked_at < TIMEOUTS.trace_question_seconds:
                    raise StepOrderError("another trace of this run is under way; ask again when it is done")
                core.give_trace_up()
            profile_bytes = 0 if profiled is None else most_bytes // 2
            worker_bytes = max(LEAST_BYTES, (most_bytes - profile_bytes) // max(1, len(waits)))
            core.start_trace(steps, most_bytes // RECORD.itemsize, worker_bytes // RECORD.itemsize)
            self._trace = _Trace(worker_bytes, profile_bytes, profiled, waits, now)

    @property
    def under_way(self) -> bool:
        """True while workers may be asked for records."""
        trace = self._trace
        return trace is not None and trace.server is None

    def end(self, core: TracingCore) -> None:
        """Record no attempt that has not begun yet, as another server's trace has ended. Without a trace: nothing."""
        with self._lock:
            if self.under_way:
                core.end_trace()

    def profile_bytes(self, rank: int) -> int:
        """Return the most bytes of a profile that the trace under way has of a worker; 0: it has none."""
        trace = self._trace
        return trace.profile_bytes if trace is not None and self.under_way and trace.profiled == rank else 0

    def note_packets(self, stats: Mapping[str, Any]) -> None:
        """Take the counts of packets from a native server's stats, where it has such."""
        network, trace = stats.get("network", {}), self._trace
        if trace is not None and "packets_in" in network:
            trace.packets.append(
                pb.PacketCounts(
                    at_ns=time.monotonic_ns(),
                    came=network["packets_in"],
                    sent=network["packets_out"],
                    resent=network["resent"],
                )
            )

    def take(self, rank: int, request: pb.TraceRecordsRequest) -> None:
        """Take a worker's records. Those of a trace that nobody waits for are dropped.

        Raises:
            ConfigError: they are no records, or more than were asked for.
        """
        if len(request.records) % RECORD.itemsize:
            raise ConfigError(f"records: expected a multiple of {RECORD.itemsize} bytes, found {len(request.records)}")
        with self._lock:
            trace = self._trace
            if trace is None or rank not in trace.waits:
                return
            pieces = trace.pieces.setdefault(rank, [])
            pieces.append(request)
            profile_bytes = trace.profile_bytes + _TABLE_BYTES if trace.profiled == rank else 0
            for what, most_bytes, size in (
                ("records", trace.worker_bytes, sum(len(piece.records) for piece in pieces)),
                ("profile", profile_bytes, sum(piece.profile.ByteSize() for piece in pieces)),
            ):
                if size > most_bytes:
                    trace.waits.discard(rank)
                    del trace.pieces[rank]
                    raise ConfigError(f"{what}: expected at most {most_bytes} bytes, found more")
            if request.last:
                trace.waits.discard(rank)

    def answer(self, core: TracingCore, present: Iterable[int], blocks: Iterable[str], offset: int) -> pb.TraceReply:
        """Return a piece of the trace, or why it is not there yet.

        Args:
            core: the native server.
            present: ranks of the workers that are in the run.
            blocks: names of the model's blocks.
            offset: bytes that the asker has.

        Raises:
            ServerError: there is no trace, or none any more.
        """
        with self._lock:
            trace = self._trace
            if trace is None:
                raise ServerError(
                    "trace: expected one that was begun, found none: its run has ended, or another trace took its "
                    "place; trace again"
                )
            trace.asked_at = self._clock()
            if trace.content is None and (why := self._advance(trace, core, set(present), blocks)):
                return pb.TraceReply(waits_for=why)
            assert trace.content is not None
            piece, size = trace.content[offset : offset + PIECE_BYTES], len(trace.content)
            if offset + len(piece) >= size:
                self._trace = None  # the asker has all of it
            return pb.TraceReply(done=True, size=size, content=piece)

    def _advance(self, trace: _Trace, core: TracingCore, present: set[int], blocks: Iterable[str]) -> str:
        """Put the trace together if all of it is there, else return what is missing."""
        if trace.server is None:
            trace.server = core.take_trace()
            if trace.server is None:
                return "the run's next steps"
            trace.recorded_at = self._clock()
            self.note_packets(core.stats())
        waits = sorted(trace.waits & present)
        if waits and self._clock() - trace.recorded_at < TIMEOUTS.trace_records_seconds:
            return f"the records of {counted(len(waits), 'worker')}"
        records, dropped, first, last = trace.server
        server = pb.ProcessTrace(
            name="server 1", records=records, dropped=dropped, blocks=blocks, packets=trace.packets
        )
        processes = [server]
        for rank, pieces in sorted(trace.pieces.items()):
            if rank not in trace.waits:
                processes.append(_joined(rank, pieces))
        missing = [f"worker {rank}" for rank in sorted(trace.waits)]
        whole = pb.RunTrace(first_step=first, last_step=last, processes=processes, missing=missing)
        trace.content = whole.SerializeToString()
        trace.pieces.clear()
        trace.waits.clear()
        return ""


def _joined(rank: int, pieces: list[pb.TraceRecordsRequest]) -> pb.ProcessTrace:
    last = pieces[-1]
    profile = None
    if last.HasField("profile"):
        profile = last.profile
        profile.events = b"".join(piece.profile.events for piece in pieces)
    return pb.ProcessTrace(
        profile=profile,
        name=f"worker {rank}",
        records=b"".join(piece.records for piece in pieces),
        dropped=last.dropped,
        clock_ns=last.clock_ns,
        clock_error_ns=last.clock_error_ns,
        blocks=last.blocks,
        servers=last.servers,
    )
