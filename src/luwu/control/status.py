"""Asks a server for the status of its run, without joining it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc

from luwu.control import control_pb2 as pb
from luwu.control import control_pb2_grpc
from luwu.control.client import open_channel
from luwu.control.credentials import STATUS_REQUEST, Credentials, make_nonce
from luwu.control.frames import SOCKET_NAME
from luwu.control.local_client import LocalClient
from luwu.control.questions import why_unanswered
from luwu.control.rpc import PROTOCOL_VERSION, check_version, error_from
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.control.waiting import saying
from luwu.core.errors import AuthenticationError, ConfigError

log = logging.getLogger(__name__)


def ask_status(
    url: str, credentials: Credentials, timeouts: Timeouts = TIMEOUTS, *, look: bool = False
) -> pb.StatusReply:
    """Return the status of the run at ``luwu://HOST:PORT``; ``look``: with what it does with each block, and figures.

    Raises:
        AuthenticationError: the key is not the server's. ServerError: it does not answer in ``health_seconds``, or is
        of a version that knows no status. ConfigError: the URL or a file cannot be used, or another protocol.
    """
    own = make_nonce()
    with open_channel(url, credentials, timeouts) as channel:
        stub = control_pb2_grpc.ControlStub(channel)

        def ask(method: Any, request: Any) -> Any:
            with saying(log, f"{url} to answer", timeouts.health_seconds):
                return method(request, timeout=timeouts.health_seconds)

        try:
            hello = ask(stub.Hello, pb.HelloRequest(protocol_version=PROTOCOL_VERSION, nonce=own))
            check_version(hello.protocol_version, f" at {url}")
            proof = credentials.prove_participant(own, hello.nonce, STATUS_REQUEST)
            reply: pb.StatusReply = ask(stub.Status, pb.StatusRequest(nonce=hello.nonce, proof=proof, look=look))
        except grpc.RpcError as error:
            sent = error_from(error.trailing_metadata(), error.details() or "")
            raise sent or why_unanswered(url, credentials, timeouts, error, "a question for its status") from None
    if reply.proof != credentials.prove_server(own, hello.nonce, STATUS_REQUEST):
        raise AuthenticationError(f"the server at {url} does not know the job key; check the address")
    return reply


def ask_local_status(folder: Path, timeouts: Timeouts = TIMEOUTS, *, look: bool = False) -> pb.StatusReply:
    """Return the status of the run that is under way in a run folder of this machine; ``look``: as `ask_status`.

    Raises:
        ConfigError: no run is under way there. ServerError: its server does not answer in ``health_seconds``.
    """
    path = folder / SOCKET_NAME
    if not path.exists():
        raise ConfigError(
            f"{folder}: expected a run folder with a run under way, found none; for a run whose server is elsewhere "
            "give that server's URL"
        )
    client = LocalClient(path, connect_seconds=0.0, answer_seconds=timeouts.health_seconds)
    try:
        reply = client.call("Status", pb.StatusRequest(look=look))
    finally:
        client.close()
    assert isinstance(reply, pb.StatusReply)
    return reply
