"""A switch's part of a trace: its records while the server traces, and its counts of packets beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from luwu.control import control_pb2 as pb
from luwu.control.link_counts import packet_counts
from luwu.core.trace import RECORD, clock_offset, clock_rounds, pieces_of

MOST_COUNTS = 10_000
"""Most counts of packets in a trace; those at its begin stay."""

Ask = Callable[[pb.TraceRecordsRequest], pb.TraceRecordsReply]
"""Function that sends records to the server, and returns the answer."""


class TracedSwitch(Protocol):
    """A native switch, as far as its traces need it."""

    def start_trace(self, most_records: int) -> None:
        """Record at most so many sums of blocks from now on."""
        ...

    def stop_trace(self) -> tuple[bytes, int]:
        """Record no more; return the records, and the number of those that found no room."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """Counts of the present run; empty between runs."""
        ...


class SwitchTracing:
    """Records of a switch, from the server's word that a trace begins to its word that it has ended.

    `take` is called in one thread, `look` in another.

    Args:
        switch: the native switch.
    """

    def __init__(self, switch: TracedSwitch) -> None:
        self._switch = switch
        self._lock = threading.Lock()
        self._on = False
        self._packets: list[pb.PacketCounts] = []
        self._finished: pb.TraceRecordsRequest | None = None

    def take(self, event: pb.SwitchTrace) -> None:
        """Begin or end a trace, as the server says."""
        with self._lock:
            if event.records:
                self._switch.start_trace(event.records)
                self._on, self._packets, self._finished = True, [], None
                self._count()
            elif self._on:
                self._count()
                records, dropped = self._switch.stop_trace()
                self._on = False
                self._finished = pb.TraceRecordsRequest(records=records, dropped=dropped, packets=self._packets)

    def look(self, ask: Ask) -> None:
        """Count packets while a trace is under way, and send what was recorded when it has ended.

        Raises:
            LuwuError: the session with the server has ended, or it does not take the records.
        """
        with self._lock:
            if self._on:
                self._count()
            finished, self._finished = self._finished, None
        if finished is None:
            return
        rounds = clock_rounds(lambda: int(ask(pb.TraceRecordsRequest()).clock_ns))
        finished.clock_ns, finished.clock_error_ns = clock_offset(rounds)
        for piece in _pieces_of(finished):
            ask(piece)

    def _count(self) -> None:
        counts = packet_counts(self._switch.stats())
        if counts is not None and len(self._packets) < MOST_COUNTS:
            self._packets.append(counts)


def _pieces_of(finished: pb.TraceRecordsRequest) -> Iterator[pb.TraceRecordsRequest]:
    """Cut the records into messages; the last one has the rest."""
    for piece in pieces_of(finished.records, RECORD.itemsize):
        yield pb.TraceRecordsRequest(records=piece)
    last = pb.TraceRecordsRequest()
    last.CopyFrom(finished)
    last.records, last.last = b"", True
    yield last
