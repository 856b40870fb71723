"""The tree between server and workers: the switches that have joined, and each participant's place in a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from luwu.control import control_pb2 as pb
from luwu.server.participants import Participant

CoreT = TypeVar("CoreT")


@dataclass(frozen=True)
class PacketOrigin:
    """Origin of a worker's packets; empty for transports that need none.

    Attributes:
        address, port: address of the worker.
        payload_bytes: the longest payload of a packet to the server.
        switch: name of the switch that it asks for; empty: any.
    """

    address: str = ""
    port: int = 0
    payload_bytes: int = 0
    switch: str = ""


NOWHERE = PacketOrigin()
"""Origin of a worker whose transport needs none."""


@dataclass(eq=False, kw_only=True)
class SwitchMember(Participant):
    """A switch that has joined; it stays from run to run. ``link``: counts that it has told; None: none yet."""

    address: str
    port: int
    fan_in: int
    payload_bytes: int
    parent: str
    link: pb.LinkCounts | None = None


@dataclass(frozen=True)
class TopologyReady(Generic[CoreT]):
    """Facts that a plan is made from once all participants of a run are there.

    Attributes:
        job: names the run on the data plane.
        workers: number of workers in the run; their names are ``worker 0`` and so on.
        switches: in the order in which they joined, the same at every plan of a run.
        address, port: the server's data plane; an empty address stands for the host that it was reached at.
        places: places of the workers, by rank.
        core: the native server.
    """

    job: int
    workers: int
    switches: tuple[SwitchMember, ...]
    address: str
    port: int
    places: tuple[PacketOrigin, ...]
    core: CoreT


PlanTopology = Callable[[TopologyReady[Any]], Mapping[str, pb.Topology]]
"""Gives each participant, by name, its place in the tree. Called again in a run when a worker came for a lost one."""


def worker_name(rank: int) -> str:
    """A worker's name among the participants."""
    return f"worker {rank}"


def star(ready: TopologyReady[Any]) -> Mapping[str, pb.Topology]:
    """Every worker sends straight to the server; switches have nothing to do."""
    return {
        worker_name(rank): pb.Topology(
            job=ready.job, workers=ready.workers, address=ready.address, port=ready.port, position=rank
        )
        for rank in range(ready.workers)
    }
