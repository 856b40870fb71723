"""Asks a server whether it serves, by gRPC's standard health protocol."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from luwu.errors import ServerError
from luwu.fabric.control import open_channel
from luwu.fabric.credentials import Credentials
from luwu.fabric.rpc import SERVICE
from luwu.fabric.timeouts import TIMEOUTS, Timeouts


def check_health(url: str, credentials: Credentials, timeouts: Timeouts = TIMEOUTS) -> str:
    """The server's own word: ``serving``, or ``not_serving`` while it stops. No job key is needed.

    Raises:
        ServerError: it does not answer within ``health_seconds``. ConfigError: the URL or a file cannot be used.
    """
    with open_channel(url, credentials, timeouts) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=timeouts.health_seconds
            )
        except grpc.RpcError as error:
            raise ServerError(
                f"{url} did not answer a health check within {timeouts.health_seconds:g} s: {error.details()}"
            ) from None
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)).lower()
