"""Agreements of both sides of the control plane beside its messages: versions, metadata, and errors on the way."""

from __future__ import annotations

from luwu.control.timeouts import Timeouts
from luwu.core.errors import ConfigError, LuwuError, ServerError, error_named

PROTOCOL_VERSION = 7
SERVICE = "luwu.control.v1.Control"
ROOM_SERVICE = "luwu.store.v1.Room"
"""Service of health checks that is NOT_SERVING while the run waits for room on a full disk."""

SESSION_METADATA = "luwu-session"
ERROR_METADATA = "luwu-error"
LONGEST_MESSAGE_BYTES = 64 << 20
"""Bytes of the longest message: a manifest of half a million parameters."""

LONGEST_ERROR_CHARACTERS = 1500
"""Most characters of an error: errors travel in a header, which may have 8 KiB."""


def check_version(found: int, where: str = "") -> None:
    """Check the other side's version of the protocol; ConfigError names both, and ``where`` it was found."""
    if found != PROTOCOL_VERSION:
        raise ConfigError(
            f"protocol version: expected {PROTOCOL_VERSION}, found {found}{where}; install the server's version of luwu"
        )


def error_text(error: LuwuError) -> str:
    """Return the error's message for a status."""
    text = str(error)
    return text if len(text) <= LONGEST_ERROR_CHARACTERS else text[:LONGEST_ERROR_CHARACTERS] + " ..."


def error_from(metadata: object, text: str) -> LuwuError | None:
    """Return the error of `luwu.errors` in a status's trailing metadata, None if there is none."""
    for key, value in metadata or ():  # type: ignore[attr-defined]
        if key == ERROR_METADATA:
            return error_named(str(value), ServerError)(text)
    return None


def channel_options(timeouts: Timeouts) -> list[tuple[str, int]]:
    """Settings of gRPC for either side: a dead peer is noticed, a link that is cut for a while is not a dead peer."""
    return [
        ("grpc.keepalive_time_ms", int(timeouts.keepalive_interval_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", int(timeouts.keepalive_timeout_seconds * 1000)),
        ("grpc.http2.ping_timeout_ms", int(timeouts.keepalive_timeout_seconds * 1000)),
        ("grpc.http2.bdp_probe", 0),  # its pings would stand in the way of those that find a dead peer
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_receive_message_length", LONGEST_MESSAGE_BYTES),
        ("grpc.max_send_message_length", LONGEST_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.use_local_subchannel_pool", 1),  # sessions of one process have connections, and limits, of their own
        ("grpc.so_reuseport", 0),  # two servers on one port would share its workers between them
        ("grpc.enable_http_proxy", 0),
    ]
