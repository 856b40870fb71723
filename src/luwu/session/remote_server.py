"""A session's side of one server: the control plane, and this worker's place in the server's tree."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from luwu.control import control_pb2 as pb
from luwu.control.address import HostPort
from luwu.control.client import ControlClient
from luwu.control.credentials import Credentials, worker_request
from luwu.control.links import ServerLink
from luwu.control.timeouts import Timeouts
from luwu.control.waiting import saying
from luwu.control.wiring import look_up
from luwu.core import native
from luwu.core.division import Share, Standing
from luwu.core.errors import LuwuError, ServerError
from luwu.core.manifest import Manifest
from luwu.core.words import printable

log = logging.getLogger(__name__)


class RemoteServer:
    """Connection of a session to one server.

    Args:
        address: address of its control plane.
        rank, workers: this process among the run's.
        credentials: credentials of this side.
        timeouts: timeouts of the network.
        on_end: called with the error that the session with this server ended with, unless it was closed.
        on_notice: called with what the server says about other workers.
        on_fenced: called with the rank of a worker whose session the server has ended.
        on_void: called with the attempt that a lost worker has made void there, as `RemoteEndpoint.annul` takes it.
    """

    def __init__(
        self,
        address: HostPort,
        rank: int,
        workers: int,
        credentials: Credentials,
        timeouts: Timeouts,
        on_end: Callable[[LuwuError], None],
        on_notice: Callable[[RemoteServer, str], None],
        on_fenced: Callable[[int], None],
        on_void: Callable[[RemoteServer, int], None],
    ) -> None:
        self.url = address.url
        self.job = 0
        """Number of the server's run, once this worker has joined it."""
        self._address = address
        self._rank, self._workers = rank, workers
        self._timeouts = timeouts
        self._on_end = on_end
        self._on_notice = on_notice
        self._on_fenced = on_fenced
        self._on_void = on_void
        self._topology: pb.Topology | None = None
        self._placed = threading.Event()  # the topology is there, or the session has ended
        self._udp: native.UdpPlace | None = None
        self.control = ControlClient(address.url, credentials, timeouts, self._take, self._fail)

    def join(self) -> str:
        """Join the server's run, and return its transport."""
        return self.control.join(worker_request(self._rank, self._workers), self._join)

    def standing(self, jobs: Sequence[int] = ()) -> Standing:
        """Return the identity and the counts of the server's store.

        ``jobs``: `job` of all servers, in their order, once they are known to have the parts of one job.
        """
        reply = self.control.call("Standing", pb.StandingRequest(jobs=jobs))
        return Standing(reply.uuid, tuple(reply.steps), reply.commit_points, reply.under_way)

    def has_store(self, manifest: Manifest) -> bool:
        """Return True where its store was made for this manifest."""
        request = pb.StandingRequest(manifest=manifest.to_json())
        return bool(self.control.call("Standing", request).has_model)

    def attach(
        self,
        manifest: Manifest,
        share: Share,
        transport: str,
        switch: str,
        run: str,
        kept: Sequence[str],
        jobs: Sequence[int],
    ) -> grpc.Future:
        """Begin to open its store for this manifest; `ControlClient.finish` waits for the pb.AttachReply."""
        request = pb.AttachRequest(manifest=manifest.to_json(), switch=switch, run=run, jobs=jobs)
        if share.servers > 1:
            request.share.CopyFrom(pb.Share(servers=share.servers, uuid=share.uuid, step=share.step))
        if transport == "udp":
            reach = look_up(self._address.host, self._address.port)
            self._udp = native.UdpPlace(reach.own, 0)
            request.address, request.port, request.payload_bytes = reach.own, self._udp.port, reach.payload_bytes
            request.kept.extend(kept)
        return self.control.start("Attach", request, patient=True)

    def place(self, attached: pb.AttachReply) -> ServerLink:
        """Return the settings of a link to the server, once every worker has attached; raises ServerError."""
        seconds = self._timeouts.answer_seconds
        with saying(log, f"the server at {self.url} to send this worker its place in the run", seconds):
            placed = self._placed.wait(seconds)
        if not placed or self._topology is None:
            raise self.control.error() or ServerError("the server sent no place in the tree; run again")
        return ServerLink(
            address=self._topology.address or self._address.host,
            port=self._topology.port,
            job=self._topology.job,
            token=attached.data_token,
            initialised=not attached.fresh,
            topology=self._topology,
            place=self._udp,
        )

    def close(self, *, leave: bool, failure: str = "") -> None:
        """End the session. Without leaving first it counts as a loss.

        `failure`: the reason, if it is another server's.
        """
        self.control.close(leave=leave or bool(failure), failure=failure)

    def _join(self, stub: Any, nonce: bytes, proof: bytes, seconds: float) -> pb.JoinReply:
        request = pb.JoinWorkerRequest(nonce=nonce, proof=proof, rank=self._rank, workers=self._workers)
        reply = stub.JoinWorker(request, timeout=seconds)
        self.job = int(reply.job)
        return reply

    def _take(self, event: pb.Event) -> None:
        if event.HasField("topology"):
            self._topology = event.topology
            self._placed.set()
        elif event.HasField("notice"):
            if event.notice.text:
                self._on_notice(self, printable(event.notice.text))
            if event.notice.HasField("fenced"):
                self._on_fenced(event.notice.fenced)
            if event.notice.HasField("void_attempt"):
                self._on_void(self, event.notice.void_attempt)

    def _fail(self, error: LuwuError) -> None:
        self._placed.set()
        self._on_end(error)
