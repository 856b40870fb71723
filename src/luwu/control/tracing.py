"""Asks a server for a trace of its run, without joining it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from google.protobuf.message import DecodeError

from luwu.control import control_pb2 as pb
from luwu.control.credentials import TRACE_REQUEST, Credentials
from luwu.control.questions import ask_proved, local_client
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.core.errors import ConfigError, LuwuError, ServerError
from luwu.core.trace import MOST_STEPS, NOBODY, require_bounds

Ask = Callable[[pb.TraceRequest], pb.TraceReply]
"""Function that sends a request for a trace, and returns the server's answer."""


def ask_at(url: str, credentials: Credentials, timeouts: Timeouts = TIMEOUTS) -> Ask:
    """Return what asks the server at ``luwu://HOST:PORT``; it raises what `luwu.control.status.ask_status` does."""

    def ask(request: pb.TraceRequest) -> pb.TraceReply:
        reply = ask_proved(url, credentials, timeouts, "Trace", request, TRACE_REQUEST)
        assert isinstance(reply, pb.TraceReply)
        return reply

    return ask


def ask_in(folder: Path, timeouts: Timeouts = TIMEOUTS) -> Ask:
    """Return what asks the run that is under way in a run folder of this machine.

    Raises:
        ConfigError: no run is under way there. The function: ServerError, once the run has ended, and the server's
        errors.
    """
    local_client(folder, timeouts).close()

    def ask(request: pb.TraceRequest) -> pb.TraceReply:
        try:
            client = local_client(folder, timeouts)
        except LuwuError:
            raise ServerError(f"{folder}: the run has ended before its trace was done; trace fewer steps") from None
        try:
            reply = client.call("Trace", request)
        finally:
            client.close()
        assert isinstance(reply, pb.TraceReply)
        return reply

    return ask


def trace_run(
    asks: Sequence[Ask],
    steps: int,
    most_bytes: int,
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
    profile_worker: int | None = None,
) -> pb.RunTrace:
    """Begin a trace, wait until it is done, and return it.

    Of several servers the others begin before the first, and end after it: so they have its steps, too.

    Args:
        asks: sends a request to a server, for each server of the job, in their order.
        steps: attempts at steps that the trace has.
        most_bytes: most bytes of a server's records, and of what all workers and switches together send.
        say: called with what the trace waits for, when that changes.
        wait: waits for a number of seconds between two questions.
        profile_worker: worker that runs torch.profiler, too; None: none does.

    Where that fails, the servers give up what has begun.

    Raises:
        ConfigError: a number is out of its range. ServerError: the run ends before the trace is done, or sends none.
        Others: what ``asks`` raise.
    """
    require_bounds(steps, most_bytes, with_profile=profile_worker is not None)
    if profile_worker is not None and not 0 <= profile_worker < NOBODY:
        raise ConfigError(f"profile-worker: expected a worker's number, 0 to {NOBODY - 1}, found {profile_worker}")
    first, *others = asks
    with _begun_traces() as begun:
        for ask in others:  # more steps than begin until the first server's trace is done
            ask(pb.TraceRequest(steps=MOST_STEPS, most_bytes=most_bytes, alone=True))
            begun.append(ask)

        def wait_for_first(seconds: float) -> None:
            wait(seconds)
            for ask in others:  # a trace that nobody asks for may be given up
                ask(pb.TraceRequest())

        reply = first(pb.TraceRequest(steps=steps, most_bytes=most_bytes, profile_worker=profile_worker))
        begun.append(first)
        found = _fetched(first, reply, _Saying(say), wait_for_first)
        begun.remove(first)
        ended = [ask(pb.TraceRequest(end=True)) for ask in others]
        saying = _Saying(say)
        traces = []
        for ask, reply in zip(others, ended, strict=True):
            traces.append(_fetched(ask, reply, lambda reason: saying("the other servers"), wait))
            begun.remove(ask)
    return join_servers(found, traces)


@contextmanager
def _begun_traces() -> Iterator[list[Ask]]:
    """Context manager: a list for those who have begun a trace; they give it up where an exception ends the body.

    Else a trace that nobody fetches any more would keep the next one waiting.
    """
    begun: list[Ask] = []
    try:
        yield begun
    except BaseException:
        for ask in begun:
            with suppress(LuwuError):
                ask(pb.TraceRequest(end=True, alone=True))
        raise


class _Saying:
    """Says what a trace waits for, when that changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said = ""

    def __call__(self, waits_for: str) -> None:
        if waits_for != self._said:
            self._said = waits_for
            self._say(f"waiting for {waits_for}")


def _fetched(ask: Ask, reply: pb.TraceReply, say: Callable[[str], None], wait: Callable[[float], None]) -> pb.RunTrace:
    """Wait until a server's trace is done, and return it; ``reply`` is its last answer."""
    while not reply.done:
        say(reply.waits_for)
        wait(TIMEOUTS.look_seconds)
        reply = ask(pb.TraceRequest())
    content = bytes(reply.content)
    while len(content) < reply.size:
        reply = ask(pb.TraceRequest(offset=len(content)))
        if not reply.content:
            raise ServerError(f"trace: expected {reply.size} bytes, found an end after {len(content)}; trace again")
        content += reply.content
    try:
        return pb.RunTrace.FromString(content)
    except DecodeError:
        raise ServerError("trace: expected a trace of this version; install the server's version of luwu") from None


def join_servers(found: pb.RunTrace, others: Sequence[pb.RunTrace]) -> pb.RunTrace:
    """Return the first server's trace with the records of the other servers in it, on the first one's clock.

    A server whose clock no worker has compared with the first one's, or that has none of the steps, counts as one whose
    records did not come. The trace has the steps that all the others have.
    """
    clocks = [process.servers for process in found.processes]
    for place, other in enumerate(others):
        name = f"server {place + 2}"
        known = [servers[place] for servers in clocks if len(servers) > place]
        first, last = max(found.first_step, other.first_step), min(found.last_step, other.last_step)
        if not known or first > last:
            found.missing.append(name)
            continue
        clock = min(known, key=lambda difference: difference.clock_error_ns)
        found.first_step, found.last_step = first, last
        found.missing.extend(f"{missing} of {name}" for missing in other.missing)
        for process in other.processes:
            process.name = name if process.name == other.processes[0].name else f"{process.name} of {name}"
            process.server = name if process.server else ""
            process.clock_ns += clock.clock_ns
            process.clock_error_ns += clock.clock_error_ns
            found.processes.append(process)
    return found
