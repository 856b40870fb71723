"""Asks a server for a trace of its run, without joining it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from google.protobuf.message import DecodeError

from luwu.control import control_pb2 as pb
from luwu.control.credentials import TRACE_REQUEST, Credentials
from luwu.control.questions import ask_proved, local_client
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.core.errors import ConfigError, LuwuError, ServerError

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
    ask: Ask,
    steps: int,
    most_bytes: int,
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
    profile_worker: int | None = None,
) -> pb.RunTrace:
    """Begin a trace, wait until it is done, and return it.

    Args:
        ask: sends a request to the server.
        steps: attempts at steps that the trace has.
        most_bytes: most bytes of the server's records, and of what all workers together send.
        say: called with what the trace waits for, when that changes.
        wait: waits for a number of seconds between two questions.
        profile_worker: worker that runs torch.profiler, too; None: none does.

    Raises:
        ConfigError: ``steps`` is less than 1. ServerError: the run ends before the trace is done, or sends none.
        Others: what ``ask`` raises.
    """
    if steps < 1:
        raise ConfigError(f"steps: expected at least 1, found {steps}")
    reply = ask(pb.TraceRequest(steps=steps, most_bytes=most_bytes, profile_worker=profile_worker))
    said = ""
    while not reply.done:
        if reply.waits_for != said:
            said = reply.waits_for
            say(f"waiting for {said}")
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
