"""Asks a server for the status of its run, without joining it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from luwu.control import control_pb2 as pb
from luwu.control.credentials import STATUS_REQUEST, Credentials
from luwu.control.questions import ask_proved, local_client
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.core.progress import Activity, WorkerPhase


def ask_status(
    url: str, credentials: Credentials, timeouts: Timeouts = TIMEOUTS, *, look: bool = False
) -> pb.StatusReply:
    """Return the status of the run at ``luwu://HOST:PORT``; ``look``: with what it does with each block, and figures.

    Raises:
        AuthenticationError: the key is not the server's. ServerError: it does not answer in ``health_seconds``, or is
        of a version that knows no status. ConfigError: the URL or a file cannot be used, or another protocol.
    """
    reply = ask_proved(url, credentials, timeouts, "Status", pb.StatusRequest(look=look), STATUS_REQUEST)
    assert isinstance(reply, pb.StatusReply)
    return reply


def ask_local_status(folder: Path, timeouts: Timeouts = TIMEOUTS, *, look: bool = False) -> pb.StatusReply:
    """Return the status of the run that is under way in a run folder of this machine; ``look``: as `ask_status`.

    Raises:
        ConfigError: no run is under way there. ServerError: its server does not answer in ``health_seconds``.
    """
    client = local_client(folder, timeouts)
    try:
        reply = client.call("Status", pb.StatusRequest(look=look))
    finally:
        client.close()
    assert isinstance(reply, pb.StatusReply)
    return reply


def facts_of(reply: pb.StatusReply) -> dict[str, Any]:
    """Return what is known of a run and its machines, as JSON can hold it; workers and blocks are left out."""
    return {
        "step": reply.step,
        "attempts": reply.attempts,
        "rolled_back": reply.rolled_back,
        "workers": reply.workers,
        "aggregate": reply.aggregate,
        "missing": list(reply.missing),
        "failure": reply.failure,
        "pause": reply.pause,
        "since_commit_seconds": reply.since_commit_seconds,
        "machines": [
            {"host": each.host, "peer": each.peer, "ranks": list(each.ranks), "waits": each.waits}
            for each in reply.machines
        ],
    }


def activity_of(told: pb.ProgressRequest) -> Activity:
    """Return a worker's activity as it told it; raises ValueError for a phase that is not known here."""
    return Activity(WorkerPhase(told.phase), told.block, told.acquired, told.pushed)
