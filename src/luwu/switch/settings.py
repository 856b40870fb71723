"""Settings of `luwu switch`: one source for its flags, its TOML file and the documentation."""

from __future__ import annotations

import socket
from typing import Annotated

from pydantic import Field

from luwu.control.credentials import CredentialSettings
from luwu.control.exposition import MetricsPlace
from luwu.control.timeouts import Timeouts
from luwu.core.settings import TOML_ONLY, Group


class SwitchSettings(CredentialSettings):
    """Settings of a switch: the server that it joins, the address it listens at, and its place in the tree."""

    server: str
    """luwu://HOST:PORT of the server that it works for"""
    listen: str = "0.0.0.0:7071"
    """HOST:PORT of packets (UDP) and health checks (TCP); a switch that is started again keeps it; port 0: any"""
    name: str = Field(default_factory=socket.gethostname)
    """its name among the server's switches, which workers and other switches may ask for; default: the host's name"""
    fan_in: Annotated[int, Field(ge=1, le=1024)] = 64
    """most workers and switches directly below it"""
    xdp: str = ""
    """interfaces, such as eth0,eth1, whose packets the kernel itself adds up and copies; empty: all in user space"""
    user: str = "nobody"
    """with --xdp, the user that the switch becomes after root has started it; it keeps the rights that XDP needs"""
    parent: str = ""
    """name of the switch above it; empty: the server chooses"""
    metrics: MetricsPlace = ""
    """HOST:PORT that answers Prometheus over HTTP, or :PORT on this machine alone; empty: nothing does"""


class SwitchFile(Group):
    """The tables of a switch's settings file."""

    switch: SwitchSettings
    timeouts: Annotated[Timeouts, TOML_ONLY] = Timeouts()
