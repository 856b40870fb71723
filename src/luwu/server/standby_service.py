"""The control plane of a standby: it describes itself, and takes over; everything else is its server's business."""

from __future__ import annotations

from typing import Any, Protocol

from luwu.control import control_pb2 as pb
from luwu.control.credentials import RELEASE_REQUEST, STATUS_REQUEST, TAKE_OVER_REQUEST
from luwu.control.door import ControlDoor
from luwu.core.errors import ConfigError, ServerError
from luwu.server.gate import Gate
from luwu.server.service import Attached, ControlService, Joined


class Follower(Protocol):
    """A standby, as its service sees it."""

    def take_over(self, anyway: bool) -> int:
        """Make the store a server's and return its step; ``anyway``: although its server is connected."""
        ...

    def status(self) -> pb.StatusReply:
        """Describe the standby."""
        ...


class StandbyService(ControlService[Any]):
    """Serves a standby; a caller is gRPC's context of the call.

    Args:
        gate: decides who may ask.
        door: takes connections in.
        server: URL of the server that the standby follows.
        follower: the standby.
    """

    def __init__(self, gate: Gate, door: ControlDoor, server: str, follower: Follower) -> None:
        super().__init__(lambda rank, report: None)
        self._gate = gate
        self._door = door
        self._server = server
        self._follower = follower

    def Hello(self, request: pb.HelloRequest, caller: Any) -> pb.HelloReply:  # noqa: N802
        """Challenge whoever asks."""
        reply = super().Hello(request, caller)
        reply.nonce = self._gate.challenge(request.nonce, self._door.peer(caller.peer()))
        reply.asks_for_key = self._gate.asks_for_key
        return reply

    def Status(self, request: pb.StatusRequest, caller: Any) -> pb.StatusReply:  # noqa: N802
        """Describe the standby to whoever has the key."""
        proof = self._let_in(request, STATUS_REQUEST, caller)
        reply = self._follower.status()
        reply.proof = proof
        return reply

    def TakeOver(self, request: pb.TakeOverRequest, caller: Any) -> pb.TakeOverReply:  # noqa: N802
        """Take over."""
        proof = self._let_in(request, TAKE_OVER_REQUEST, caller)
        return pb.TakeOverReply(proof=proof, step=self._follower.take_over(request.anyway))

    def Release(self, request: pb.ReleaseRequest, caller: Any) -> pb.ReleaseReply:  # noqa: N802
        """Refuse: a server gives its standby up."""
        self._let_in(request, RELEASE_REQUEST, caller)
        raise ConfigError(f"release: expected a server, found its standby; give the server's URL, {self._server}")

    def worker_of(self, caller: Any) -> Joined:
        """Refuse: nobody joins a standby."""
        raise self._refusal()

    def attach(self, caller: Any, request: pb.AttachRequest) -> Attached:
        """Refuse, as `worker_of`."""
        raise self._refusal()

    def JoinWorker(self, request: pb.JoinWorkerRequest, caller: Any) -> pb.JoinReply:  # noqa: N802
        """Refuse, as `worker_of`."""
        raise self._refusal()

    def Standing(self, request: pb.StandingRequest, caller: Any) -> pb.StandingReply:  # noqa: N802
        """Refuse, as `worker_of`."""
        raise self._refusal()

    def Trace(self, request: pb.TraceRequest, caller: Any) -> pb.TraceReply:  # noqa: N802
        """Refuse, as `worker_of`."""
        raise self._refusal()

    def Leave(self, request: pb.LeaveRequest, caller: Any) -> pb.Empty:  # noqa: N802
        """Refuse, as `worker_of`."""
        raise self._refusal()

    def __getattr__(self, name: str) -> Any:
        """Refuse every other method of control.proto."""
        if name not in {method.name for method in pb.DESCRIPTOR.services_by_name["Control"].methods}:
            raise AttributeError(name)

        def refuse(request: Any, caller: Any) -> Any:
            raise self._refusal()

        return refuse

    def _refusal(self) -> ServerError:
        return ServerError(
            f"this is the standby of {self._server}, and has not taken over; join that server, or see luwu status"
        )

    def _let_in(self, request: Any, asked: str, caller: Any) -> bytes:
        proof = self._gate.check(request.nonce, request.proof, asked, self._door.peer(caller.peer()))
        self._door.admit(caller.peer())
        return proof
