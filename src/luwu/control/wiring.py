"""Agreements of the participants of a run over UDP, between the control plane's words and the native core's."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import Timeouts
from luwu.core import native
from luwu.core.errors import ServerError
from luwu.core.quantities import LONGEST_SECONDS

STREAMS = 4
"""Streams that packets are numbered in, each with a window; see docs/protocol.md."""

TIMINGS = tuple(name for name in Timeouts.model_fields if name in pb.Network.DESCRIPTOR.fields_by_name)
"""Timeouts that every participant over UDP must know: those that the message of the network has, too."""


def timings_of(source: Timeouts | pb.Network) -> dict[str, float]:
    """Return the timings of UDP by name, in seconds, from a server's settings or from what it sent."""
    return {name: float(getattr(source, name)) for name in TIMINGS}


def make_wiring(network: pb.Network, job: int, workers: int, incarnation: int = 0) -> native.Wiring:
    """Make the native wiring; blocks come from the model. ``incarnation``: this participant's, see control.proto.

    Raises:
        ServerError, ConfigError: the other side's words are of another version of luwu, or make no sense.
    """
    timings = timings_of(network)
    seconds = timings.values()
    if len(network.windows) != STREAMS or not all(0 <= each <= LONGEST_SECONDS for each in seconds):
        raise ServerError(
            f"network: expected {STREAMS} windows and times of at most {LONGEST_SECONDS:g} s, found "
            f"{list(network.windows)} and {list(seconds)}; install one version of luwu everywhere"
        )
    return native.Wiring(
        job=job,
        key=network.key,
        epoch=network.epoch,
        workers=workers,
        payload_bytes=network.payload_bytes,
        form=network.form,
        windows=tuple(network.windows),
        timing=native.NetworkTiming(timings),
        incarnation=incarnation,
    )


@dataclass(frozen=True)
class Reach:
    """Way to a server from here: its number, our own address on the way, the longest payload of a packet in bytes."""

    server: str
    own: str
    payload_bytes: int


def look_up(host: str, port: int) -> Reach:
    """Find the way to a server; nothing is sent. Raises ServerError."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise ServerError(f"no way to {host}: {error.strerror}; check the address and the routes") from None
    server = str(place[0])
    return Reach(server, own, native.udp_payload_limit(own, (server, port)))
