"""Counts of a participant's end of its links, from the stats of its data plane."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from luwu.control import control_pb2 as pb

_DROPPED = ("dropped_full", "dropped_refused", "dropped_cut", "dropped_unread")
"""Counts of a socket whose datagrams its machine did not take."""

_DAMAGED = ("truncated", "checksum")
"""Reasons for which a node drops a packet that was damaged on its way."""


def link_counts(stats: Mapping[str, Any], transport: str, at_seconds: float) -> pb.LinkCounts:
    """Return the counts of a worker's or a switch's links.

    Args:
        stats: stats of the worker's data plane, or of the switch between whose links nothing tells apart.
        transport: shm, tcp or udp.
        at_seconds: time of the monotonic clock at which the stats were taken.
    """
    networks = [network for network in stats.get("networks", [stats]) if "socket" in network]
    sockets = [network["socket"] for network in networks]
    received, sent = ("bytes_pulled", "bytes_pushed") if transport == "shm" else ("bytes_received", "bytes_sent")
    dropped = sum(socket[name] for socket in sockets for name in _DROPPED)
    damaged = sum(network["drops"][name] for network in networks for name in _DAMAGED)
    return pb.LinkCounts(
        transport=transport,
        at_seconds=at_seconds,
        received_bytes=stats.get(received, 0) + sum(socket["bytes_received"] for socket in sockets),
        sent_bytes=stats.get(sent, 0) + sum(socket["bytes_sent"] for socket in sockets),
        packets_sent=sum(network["packets_out"] for network in networks),
        packets_again=sum(map(_sent_again, networks)),
        packets_dropped=dropped + damaged,
    )


def packet_counts(stats: Mapping[str, Any]) -> pb.PacketCounts | None:
    """Return the packets that a node has carried until now, from its stats; None: it carries none."""
    if "packets_in" not in stats:
        return None
    return pb.PacketCounts(
        at_ns=time.monotonic_ns(), came=stats["packets_in"], sent=stats["packets_out"], resent=_sent_again(stats)
    )


def _sent_again(stats: Mapping[str, Any]) -> int:
    """Return the packets that a node sent again; a switch names those of its sums."""
    return int(stats.get("resent", stats.get("sums_sent_again", 0)))


def facts_of_link(counts: pb.LinkCounts) -> dict[str, Any]:
    """Return the counts as JSON can hold them, without their time."""
    return {
        "transport": counts.transport,
        "received_bytes": counts.received_bytes,
        "sent_bytes": counts.sent_bytes,
        "packets_sent": counts.packets_sent,
        "packets_again": counts.packets_again,
        "packets_dropped": counts.packets_dropped,
    }
