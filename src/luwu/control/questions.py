"""Questions to a server that are no session's: over the network with a proof of the key, or through its socket."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc

from luwu.control import control_pb2 as pb
from luwu.control import control_pb2_grpc
from luwu.control.address import parse_url
from luwu.control.client import open_channel
from luwu.control.credentials import Credentials, make_nonce
from luwu.control.frames import SOCKET_NAME
from luwu.control.local_client import LocalClient
from luwu.control.probing import Answer, probe
from luwu.control.rpc import PROTOCOL_VERSION, check_version, error_from
from luwu.control.timeouts import Timeouts
from luwu.control.waiting import saying
from luwu.core.errors import AuthenticationError, ConfigError, ServerError

log = logging.getLogger(__name__)


def ask_proved(url: str, credentials: Credentials, timeouts: Timeouts, name: str, request: Any, asked: str) -> Any:
    """Call a method of the server at ``luwu://HOST:PORT`` that takes a proof of the key, and gives one.

    Args:
        url: address of the server.
        credentials: credentials of this side.
        timeouts: timeouts of the network.
        name: name of the method.
        request: its request, whose nonce and proof are set here.
        asked: text that the proof covers, and what is asked for in words.

    Raises:
        AuthenticationError: the key is not the server's. ServerError: it does not answer in ``health_seconds``, or is
        of a version that does not know the method. ConfigError: the URL or a file cannot be used, or another protocol.
        Others: the server's.
    """
    own = make_nonce()
    with open_channel(url, credentials, timeouts) as channel:
        stub = control_pb2_grpc.ControlStub(channel)

        def ask(method: Any, message: Any) -> Any:
            with saying(log, f"{url} to answer", timeouts.health_seconds):
                return method(message, timeout=timeouts.health_seconds)

        try:
            hello = ask(stub.Hello, pb.HelloRequest(protocol_version=PROTOCOL_VERSION, nonce=own))
            check_version(hello.protocol_version, f" at {url}")
            request.nonce = hello.nonce
            request.proof = credentials.prove_participant(own, hello.nonce, asked)
            reply = ask(getattr(stub, name), request)
        except grpc.RpcError as error:
            sent = error_from(error.trailing_metadata(), error.details() or "")
            raise sent or why_unanswered(url, credentials, timeouts, error, f"a question for its {asked}") from None
    if reply.proof != credentials.prove_server(own, hello.nonce, asked):
        raise AuthenticationError(f"the server at {url} does not know the job key; check the address")
    return reply


def local_client(folder: Path, timeouts: Timeouts) -> LocalClient:
    """Connect to the run that is under way in a run folder of this machine.

    Raises:
        ConfigError: no run is under way there. ServerError: its server does not answer in ``health_seconds``.
    """
    path = folder / SOCKET_NAME
    if not path.exists():
        raise ConfigError(
            f"{folder}: expected a run folder with a run under way, found none; for a run whose server is elsewhere "
            "give that server's URL"
        )
    try:
        return LocalClient(path, connect_seconds=0.0, answer_seconds=timeouts.health_seconds)
    except ServerError as error:
        if not isinstance(error.__cause__, ConnectionRefusedError):
            raise
        raise ServerError(
            f"{folder}: no run is under way there: its process has ended without closing it, as one that is killed "
            "does; start the run again, and it goes on from its last commit"
        ) from None


def why_unanswered(
    url: str, credentials: Credentials, timeouts: Timeouts, error: grpc.RpcError, question: str
) -> ServerError:
    """Make the error of a question without an answer from what the port says to a connection."""
    answer = probe(parse_url(url), timeouts.retry_seconds, credentials.tls)
    if answer is Answer.REFUSED:
        return ServerError(f"{url} refused the connection: no server listens there; start it, or check the address")
    if answer is Answer.OTHER:
        ours = "with TLS that fits these certificates" if credentials.tls else "without TLS"
        certificates = "" if credentials.tls else ", or name certificates with --tls-cert, --tls-key and --tls-ca"
        return ServerError(
            f"{url}: expected a luwu server {ours}, found a port that answers otherwise; check the address and the "
            f"port{certificates or ', and the certificates of both sides'}"
        )
    within = f"{url} did not answer {question} within {timeouts.health_seconds:g} s"
    if answer is Answer.CLOSED:
        return ServerError(
            f"{within}: connections were closed without an answer; check the address and the port, or end who opens "
            "too many connections from this host's address"
        )
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return ServerError(f"{url}: expected a luwu server, found another gRPC server; check the address and the port")
    return ServerError(f"{within}; look at its log, check the address and what lies between, or ask again")
