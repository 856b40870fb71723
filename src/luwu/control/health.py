"""Asks a server whether it serves, by gRPC's standard health protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from luwu.control.address import parse_url
from luwu.control.client import open_channel
from luwu.control.credentials import Credentials
from luwu.control.probing import Answer, probe
from luwu.control.rpc import ROOM_SERVICE, SERVICE
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.control.waiting import saying
from luwu.core.errors import ServerError

log = logging.getLogger(__name__)


def check_health(url: str, credentials: Credentials, timeouts: Timeouts = TIMEOUTS) -> str:
    """Return the server's answer: ``serving``; ``not_serving`` while it stops; ``paused`` while a run waits for room.

    No job key is needed.

    Raises:
        ServerError: the server does not answer in ``health_seconds``. ConfigError: the URL or a file cannot be used.
    """
    with open_channel(url, credentials, timeouts) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        status = health_pb2.HealthCheckResponse

        def ask(service: str) -> int:
            request = health_pb2.HealthCheckRequest(service=service)
            with saying(log, f"{url} to answer a health check", timeouts.health_seconds):
                return int(stub.Check(request, timeout=timeouts.health_seconds).status)

        try:
            answer = ask(SERVICE)
            if answer == status.SERVING and _waits_for_room(ask):
                return "paused"
        except grpc.RpcError as error:
            raise _unhealthy(url, credentials, timeouts, error) from None
    return str(status.ServingStatus.Name(answer)).lower()


def _waits_for_room(ask: Callable[[str], int]) -> bool:
    try:
        answer = ask(ROOM_SERVICE)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:  # a switch has no store
            return False
        raise
    return bool(answer == health_pb2.HealthCheckResponse.NOT_SERVING)


def _unhealthy(url: str, credentials: Credentials, timeouts: Timeouts, error: grpc.RpcError) -> ServerError:
    """Make the error of a check without an answer from what the port says to a connection."""
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
    within = f"{url} did not answer a health check within {timeouts.health_seconds:g} s"
    if answer is Answer.CLOSED:
        return ServerError(
            f"{within}: connections were closed without an answer; check the address and the port, or end who opens "
            "too many connections from this host's address"
        )
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return ServerError(f"{url}: expected a luwu server, found another gRPC server; check the address and the port")
    return ServerError(f"{within}; look at its log, check the address and what lies between, or ask again")
