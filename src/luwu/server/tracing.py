"""A trace of a run: the server's own records, and those that its workers send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from luwu.control import control_pb2 as pb
from luwu.control.link_counts import packet_counts
from luwu.control.timeouts import TIMEOUTS
from luwu.core.errors import ConfigError, ServerError
from luwu.core.trace import LEAST_BYTES, RECORD, require_bounds
from luwu.core.words import counted

PIECE_BYTES = 4 << 20
"""Bytes of a trace in one message."""

_NAME = "server 1"
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


class TracedSwitch(Protocol):
    """A switch that has joined the server."""

    @property
    def name(self) -> str:
        """Its name, such as ``switch rack1``."""
        ...

    def tell(self, event: pb.Event) -> None:
        """Send it an event."""
        ...


Sender = int | str
"""A worker's rank, or a switch's name: who sends records."""


class _Piece(NamedTuple):
    """Records of a trace, and whether there were some of an earlier one beside them, which are left out."""

    request: pb.TraceRecordsRequest
    earlier: bool


@dataclass
class _Trace:
    """A trace that is being made.

    ``waits`` are the workers and switches whose records are still to come, ``profiled`` is the worker that has a
    profile, too. ``after_step`` is the step that was committed when it began: records of steps up to that one belong to
    an earlier trace, as do the next records of the senders in ``cut``, up to their last. ``lost`` are workers whose
    records went with them; another worker may have come to their place.
    """

    sender_bytes: int
    profile_bytes: int
    profiled: int | None
    switches: Sequence[TracedSwitch]
    waits: set[Sender]
    cut: set[Sender]
    after_step: int
    asked_at: float
    server: tuple[bytes, int, int, int] | None = None
    recorded_at: float = 0.0
    pieces: dict[Sender, list[_Piece]] = field(default_factory=dict)
    packets: list[pb.PacketCounts] = field(default_factory=list)
    lost: set[Sender] = field(default_factory=set)
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
        self._sending: set[Sender] = set()  # who has sent some records, and not the last of them

    def start(
        self,
        core: TracingCore,
        workers: Iterable[int],
        steps: int,
        most_bytes: int,
        profiled: int | None = None,
        switches: Sequence[TracedSwitch] = (),
    ) -> None:
        """Begin a trace; the one before it is forgotten, if nobody asks for it any more.

        Args:
            core: the native server.
            workers: ranks of the run's workers.
            steps: attempts at steps that it has.
            most_bytes: most bytes of the server's records, and of what all workers and switches together send.
            profiled: worker that sends a profile, which then may have half of those bytes; None: none does.
            switches: switches that send records, too.

        Raises:
            ConfigError: a number that is out of its range. ServerError: another trace is under way.
        """
        ranks = set(workers)
        require_bounds(steps, most_bytes, with_profile=profiled is not None)
        if profiled is not None and profiled not in ranks:
            raise ConfigError(f"profile-worker: expected 0 to {len(ranks) - 1}, found {profiled}")
        with self._lock:
            now = self._clock()
            if self._trace is not None and now - self._trace.asked_at < TIMEOUTS.trace_question_seconds:
                raise ServerError("another trace of this run is under way; ask again when it is done")
            self._give_up(core)
            profile_bytes = 0 if profiled is None else most_bytes // 2
            waits: set[Sender] = {*ranks, *(switch.name for switch in switches)}
            sender_bytes = max(LEAST_BYTES, (most_bytes - profile_bytes) // max(1, len(waits)))
            records = sender_bytes // RECORD.itemsize
            after_step = int(core.stats()["step"])
            core.start_trace(steps, most_bytes // RECORD.itemsize, records)
            self._trace = _Trace(
                sender_bytes, profile_bytes, profiled, switches, waits, set(self._sending), after_step, now
            )
            for switch in switches:
                switch.tell(pb.Event(trace=pb.SwitchTrace(records=records)))

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

    def give_up(self, core: TracingCore) -> None:
        """Forget the trace, as its asker does. Without a trace: nothing."""
        with self._lock:
            self._give_up(core)

    def forget(self, core: TracingCore) -> None:
        """Forget a trace that its asker has left; its records would stay until the next one, or the run's end."""
        with self._lock:
            trace = self._trace
            if trace is not None and self._clock() - trace.asked_at >= TIMEOUTS.trace_kept_seconds:
                self._give_up(core)

    def _give_up(self, core: TracingCore) -> None:
        trace = self._trace
        if self.under_way:
            assert trace is not None
            core.give_trace_up()
            for switch in trace.switches:
                switch.tell(pb.Event(trace=pb.SwitchTrace()))
        self._trace = None

    def profile_bytes(self, sender: Sender) -> int:
        """Return the most bytes of a profile that the trace under way has of a worker; 0: it has none."""
        trace = self._trace
        return trace.profile_bytes if trace is not None and self.under_way and trace.profiled == sender else 0

    def note_packets(self, stats: Mapping[str, Any]) -> None:
        """Take the counts of packets from a native server's stats, where it has such."""
        trace, counts = self._trace, packet_counts(stats.get("network", {}))
        if trace is not None and counts is not None:
            trace.packets.append(counts)

    def take(self, sender: Sender, request: pb.TraceRecordsRequest) -> None:
        """Take the records of a worker or a switch. Those of a trace that nobody waits for are dropped.

        Raises:
            ConfigError: they are no records, or more than were asked for.
        """
        if len(request.records) % RECORD.itemsize:
            raise ConfigError(f"records: expected a multiple of {RECORD.itemsize} bytes, found {len(request.records)}")
        with self._lock:
            (self._sending.discard if request.last else self._sending.add)(sender)
            trace = self._trace
            if trace is None or sender not in trace.waits:
                return
            if sender in trace.cut:
                if request.last:
                    trace.cut.discard(sender)
                return
            pieces = trace.pieces.setdefault(sender, [])
            pieces.append(_without_earlier(sender, request, trace.after_step))
            if trace.profiled != sender and any(piece.earlier for piece in pieces):
                request.ClearField("profile")  # the earlier trace's
            if why := _too_much(trace, sender, pieces):
                trace.waits.discard(sender)
                del trace.pieces[sender]
                self._sending.discard(sender)  # who gets the error sends no more
                raise ConfigError(why)
            if not request.last:
                return
            if any(piece.earlier for piece in pieces) and not any(piece.request.records for piece in pieces):
                del trace.pieces[sender]  # all of them are of an earlier trace: this one's are still to come
                return
            trace.waits.discard(sender)

    def lose(self, rank: int) -> None:
        """Note that a worker is lost, before another one may come to its place: what it has recorded does not come."""
        with self._lock:
            self._sending.discard(rank)
            trace = self._trace
            if trace is not None and rank in trace.waits:
                trace.pieces.pop(rank, None)
                trace.cut.discard(rank)
                trace.lost.add(rank)

    def answer(self, core: TracingCore, present: Iterable[Sender], blocks: Sequence[str], offset: int) -> pb.TraceReply:
        """Return a piece of the trace, or why it is not there yet.

        Args:
            core: the native server.
            present: workers and switches that are in the run.
            blocks: names of the model's blocks.
            offset: bytes that the asker has.

        Raises:
            ServerError: there is no trace, or none any more.
        """
        with self._lock:
            trace = self._trace
            if trace is None:
                raise ServerError(
                    "trace: expected one that was begun, found none: its run has ended, another trace took its "
                    f"place, or nobody asked for it for {TIMEOUTS.trace_kept_seconds:g} s; trace again"
                )
            trace.asked_at = self._clock()
            if trace.content is None and (why := self._advance(trace, core, set(present), blocks)):
                return pb.TraceReply(waits_for=why)
            assert trace.content is not None
            piece, size = trace.content[offset : offset + PIECE_BYTES], len(trace.content)
            if offset + len(piece) >= size:
                self._trace = None  # the asker has all of it
            return pb.TraceReply(done=True, size=size, content=piece)

    def _advance(self, trace: _Trace, core: TracingCore, present: set[Sender], blocks: Sequence[str]) -> str:
        """Put the trace together if all of it is there, else return what is missing."""
        if trace.server is None:
            trace.server = core.take_trace()
            if trace.server is None:
                return "the run's next steps"
            trace.recorded_at = self._clock()
            self.note_packets(core.stats())
            for switch in trace.switches:
                switch.tell(pb.Event(trace=pb.SwitchTrace()))
        waits = trace.waits & present
        if waits and self._clock() - trace.recorded_at < TIMEOUTS.trace_records_seconds:
            switches = sum(isinstance(sender, str) for sender in waits)
            counts = (len(waits) - switches, "worker", "workers"), (switches, "switch", "switches")
            return f"the records of {' and '.join(counted(*each) for each in counts if each[0])}"
        records, dropped, first, last = trace.server
        server = pb.ProcessTrace(name=_NAME, records=records, dropped=dropped, blocks=blocks, packets=trace.packets)
        come = {sender: pieces for sender, pieces in trace.pieces.items() if sender not in trace.waits}
        joined = {
            sender: _joined(sender, [piece.request for piece in come[sender]], blocks)
            for sender in sorted(come, key=_order)
        }
        processes = [server, *joined.values()]
        missing = [
            _name_of(sender) if sender in trace.waits else _missing_of(joined[sender], first)
            for sender in sorted(trace.waits | (trace.lost & joined.keys()), key=_order)
        ]
        whole = pb.RunTrace(first_step=first, last_step=last, processes=processes, missing=missing)
        trace.content = whole.SerializeToString()
        trace.pieces.clear()
        trace.waits.clear()
        return ""


def _order(sender: Sender) -> tuple[bool, Sender]:
    """Sort workers by their ranks, and then switches by their names."""
    return isinstance(sender, str), sender


def _name_of(sender: Sender) -> str:
    return sender if isinstance(sender, str) else f"worker {sender}"


def _missing_of(process: pb.ProcessTrace, first_step: int) -> str:
    """Return what a trace does not have of a worker that came for a lost one."""
    steps = np.frombuffer(process.records, RECORD)["step"]
    last_missing = int(steps.min()) - 1 if len(steps) else first_step - 1
    # the step that the lost one was in was given up, and may be the one that the other began with
    return f"{process.name} until step {last_missing}" if last_missing >= first_step else f"{process.name} in part"


def _without_earlier(sender: Sender, request: pb.TraceRecordsRequest, after_step: int) -> _Piece:
    """Leave records of steps up to one out; a switch's do not tell their steps.

    A worker does not see that a trace was given up for another one, and sends the records of both.
    """
    if isinstance(sender, str):
        return _Piece(request, False)
    records = np.frombuffer(request.records, RECORD)
    kept = records[records["step"] > after_step]
    if len(kept) == len(records):
        return _Piece(request, False)
    request.records = kept.tobytes()
    return _Piece(request, True)


def _too_much(trace: _Trace, sender: Sender, pieces: Sequence[_Piece]) -> str:
    """Return an error's text where a sender has sent more than it was asked for; empty: it has not."""
    profile_bytes = trace.profile_bytes + _TABLE_BYTES if trace.profiled == sender else 0
    for what, most_bytes, size in (
        ("records", trace.sender_bytes, sum(len(piece.request.records) for piece in pieces)),
        ("profile", profile_bytes, sum(piece.request.profile.ByteSize() for piece in pieces)),
    ):
        if size > most_bytes:
            return f"{what}: expected at most {most_bytes} bytes, found more"
    return ""


def _joined(sender: Sender, pieces: Sequence[pb.TraceRecordsRequest], blocks: Sequence[str]) -> pb.ProcessTrace:
    """Return a process's part of a trace. A switch knows the blocks by the server's numbers."""
    last = pieces[-1]
    switch = isinstance(sender, str)
    profile = None
    if last.HasField("profile"):
        profile = last.profile
        profile.events = b"".join(piece.profile.events for piece in pieces)
    return pb.ProcessTrace(
        profile=profile,
        name=_name_of(sender),
        packets=last.packets,
        server=_NAME if switch else "",
        records=b"".join(piece.records for piece in pieces),
        dropped=last.dropped,
        clock_ns=last.clock_ns,
        clock_error_ns=last.clock_error_ns,
        blocks=blocks if switch else last.blocks,
        servers=last.servers,
    )
