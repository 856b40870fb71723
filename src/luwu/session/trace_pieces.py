"""A worker's records of a trace, cut into messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from luwu.control import control_pb2 as pb
from luwu.core.profiling import EVENT, Profile
from luwu.core.trace import RECORD, WorkerRecords, pieces_of


def trace_pieces(
    finished: WorkerRecords, clocks: Sequence[tuple[int, int]], blocks: Sequence[str]
) -> Iterator[pb.TraceRecordsRequest]:
    """Return the messages; the last one has what is there but once.

    Args:
        finished: the records. The events of their profile are read first, which may take a second.
        clocks: of each server the time to add to this process's clock to have its own, and its error; nanoseconds.
        blocks: names of the model's blocks.
    """
    profile = None if finished.profile is None else finished.profile.pack()
    for piece in pieces_of(finished.content, RECORD.itemsize):
        yield pb.TraceRecordsRequest(records=piece)
    for piece in pieces_of(b"" if profile is None else profile.events, EVENT.itemsize):
        yield pb.TraceRecordsRequest(profile=pb.Profile(events=piece))
    (clock_ns, clock_error_ns), *others = clocks
    yield pb.TraceRecordsRequest(
        last=True,
        dropped=finished.dropped,
        clock_ns=clock_ns,
        clock_error_ns=clock_error_ns,
        blocks=blocks,
        profile=None if profile is None else _about(profile),
        servers=[
            pb.ClockDifference(clock_ns=clock_ns - other_ns, clock_error_ns=clock_error_ns + error_ns)
            for other_ns, error_ns in others
        ],
    )


def _about(profile: Profile) -> pb.Profile:
    return pb.Profile(
        names=profile.names,
        tracks=profile.tracks,
        dropped=profile.dropped,
        clock_error_ns=profile.clock_error_ns,
        failure=profile.failure,
    )
