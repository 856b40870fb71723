"""Asks a server whether it serves, by gRPC's standard health protocol."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from luwu.control.client import connection_refused, open_channel
from luwu.control.credentials import Credentials
from luwu.control.rpc import ROOM_SERVICE, SERVICE
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.core.errors import ServerError


def check_health(url: str, credentials: Credentials, timeouts: Timeouts = TIMEOUTS) -> str:
    """Return the server's answer: ``serving``; ``not_serving`` while it stops; ``paused`` while a run waits for room.

    No job key is needed.

    Raises:
        ServerError: the server does not answer in ``health_seconds``. ConfigError: the URL or a file cannot be used.
    """
    with open_channel(url, credentials, timeouts) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        status = health_pb2.HealthCheckResponse
        try:
            answer = check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=timeouts.health_seconds).status
            if answer == status.SERVING and _waits_for_room(check, timeouts):
                return "paused"
        except grpc.RpcError as error:
            if connection_refused(url, timeouts):
                raise ServerError(
                    f"{url} refused the connection: no server listens there; start it, or check the address"
                ) from None
            raise ServerError(
                f"{url} did not answer a health check within {timeouts.health_seconds:g} s: {error.details()}"
            ) from None
    return str(status.ServingStatus.Name(answer)).lower()


def _waits_for_room(check: Any, timeouts: Timeouts) -> bool:
    try:
        answer = check(health_pb2.HealthCheckRequest(service=ROOM_SERVICE), timeout=timeouts.health_seconds)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:  # a switch has no store
            return False
        raise
    return bool(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING)
