"""Asks a server whether it serves, by gRPC's standard health protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from luwu.control.client import open_channel
from luwu.control.credentials import Credentials
from luwu.control.questions import why_unanswered
from luwu.control.rpc import ROOM_SERVICE, SERVICE
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.control.waiting import saying

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
            raise why_unanswered(url, credentials, timeouts, error, "a health check") from None
    return str(status.ServingStatus.Name(answer)).lower()


def _waits_for_room(ask: Callable[[str], int]) -> bool:
    try:
        answer = ask(ROOM_SERVICE)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:  # a switch has no store
            return False
        raise
    return bool(answer == health_pb2.HealthCheckResponse.NOT_SERVING)
