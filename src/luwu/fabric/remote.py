"""Sessions with a server on the network: `connect`."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from luwu import _native
from luwu.errors import ConfigError, LuwuError, ServerError
from luwu.fabric import control_pb2 as pb
from luwu.fabric.address import parse_url
from luwu.fabric.control import ControlClient
from luwu.fabric.credentials import Credentials, TlsFiles, find_credentials, worker_request
from luwu.fabric.links import TRANSPORTS, LinkSettings, OpenLink, WorkerLink
from luwu.fabric.remote_endpoint import RemoteEndpoint
from luwu.fabric.session import Session
from luwu.fabric.timeouts import TIMEOUTS, Timeouts
from luwu.fabric.wiring import look_up
from luwu.store.manifest import Manifest


class RemoteSession(Session):
    """A session with a server on the network. Made by `connect`."""

    def __init__(
        self,
        url: str,
        rank: int,
        workers: int,
        credentials: Credentials,
        timeouts: Timeouts = TIMEOUTS,
        transports: dict[str, OpenLink] = TRANSPORTS,
        switch: str = "",
    ) -> None:
        super().__init__(rank, workers)
        self._credentials = credentials
        self._timeouts = timeouts
        self._host = parse_url(url).host
        self._switch = switch
        self._lock = threading.Lock()  # the watch may end while the link is being opened
        self._link: WorkerLink | None = None
        self._topology: pb.Topology | None = None
        self._placed = threading.Event()  # the topology is there, or the session has ended
        self._control = ControlClient(url, credentials, timeouts, self._take, self._fail)
        try:
            transport = self._control.join(worker_request(rank, workers), self._join)
            if transport not in transports:
                raise ConfigError(
                    f"transport: expected one of {', '.join(transports)}, found {transport!r} at {url}; "
                    "install the server's version of luwu"
                )
        except BaseException:
            self._control.close(leave=True)
            raise
        self._transport = transport
        self._open_link = transports[transport]

    def initialised(self) -> None:
        """Let the other workers in: the store's first values are committed."""
        self._control.call("Initialised", pb.InitialisedRequest())

    def set_segments(self, block: int, segments: Sequence[tuple[int, int]]) -> None:
        """Set the optimizer group of each part of a block: ascending (end element, group). Before the first step."""
        request = pb.SetSegmentsRequest(block=block)
        for end, group in segments:
            request.segments.add(end=end, group=group)
        self._control.call("SetSegments", request)

    def report(self, report: dict[str, Any]) -> None:
        """Send something that JSON can hold to whoever started the server."""
        self._control.call("Report", pb.ReportRequest(report=json.dumps(report)))

    def _join(self, stub: Any, nonce: bytes, proof: bytes, seconds: float) -> pb.JoinReply:
        request = pb.JoinWorkerRequest(nonce=nonce, proof=proof, rank=self.rank, workers=self.workers)
        return stub.JoinWorker(request, timeout=seconds)

    def _attach(self, manifest: Manifest, shared_window: bool) -> bool:
        request = pb.AttachRequest(manifest=manifest.to_json(), switch=self._switch)
        place = None
        if self._transport == "udp":
            reach = look_up(self._host, parse_url(self._control.url).port)
            place = _native.UdpPlace(reach.own, 0)
            request.address, request.port, request.payload_bytes = reach.own, place.port, reach.payload_bytes
        reply = self._control.call("Attach", request, patient=True)
        link = self._open(manifest, reply.data_token, place)
        with self._lock:
            self._link = link
        error = self._control.error()
        if error is not None:  # it came before there was a link to tell
            link.fail(type(error).__name__, str(error))
        self._endpoint = RemoteEndpoint(link, self._control, shared_window=shared_window)
        self.step, self.attempts, self.rolled_back = reply.step, reply.attempts, reply.rolled_back
        return bool(reply.fresh)

    def _open(self, manifest: Manifest, token: bytes, own: _native.UdpPlace | None) -> WorkerLink:
        if not self._placed.wait(self._timeouts.answer_seconds) or self._topology is None:
            raise self._control.error() or ServerError("the server sent no place in the tree; run again")
        place = self._topology
        return self._open_link(
            LinkSettings(
                address=place.address or self._host,
                port=place.port,
                job=place.job,
                rank=self.rank,
                workers=self.workers,
                token=token,
                manifest=manifest,
                tls=self._credentials.tls,
                timeouts=self._timeouts,
                topology=place,
                place=own,
            )
        )

    def _take(self, event: pb.Event) -> None:
        if event.HasField("topology"):
            self._topology = event.topology
            self._placed.set()

    def _fail(self, error: LuwuError) -> None:
        self._placed.set()
        with self._lock:
            link = self._link
        if link is not None:
            link.fail(type(error).__name__, str(error))

    def _end(self, *, failed: bool) -> None:
        self._control.close(leave=not failed)
        if self._link is not None:
            self._link.close()


def connect(
    url: str,
    *,
    rank: int | None = None,
    workers: int | None = None,
    key: str | bytes | None = None,
    key_file: str | Path | None = None,
    tls: TlsFiles | None = None,
    timeouts: Timeouts = TIMEOUTS,
    switch: str | None = None,
) -> RemoteSession:
    """Join a server on the network (`luwu server`) as one of its workers.

    Args:
        url: ``luwu://HOST:PORT``, as the server says when it starts.
        rank, workers: this process among the run's; default: RANK and WORLD_SIZE of the environment, as torchrun sets
            them, else one worker.
        key, key_file: the job key, or the file that has it; default: LUWU_JOB_KEY or LUWU_JOB_KEY_FILE.
        tls: certificates for mutual TLS; default: LUWU_TLS_CERT, LUWU_TLS_KEY and LUWU_TLS_CA.
        timeouts: how long to wait for what.
        switch: name of the switch to hang on, over the transport udp; default: LUWU_SWITCH, else the server chooses.

    Raises:
        ServerError: nobody answered at the address within ``connect_seconds``; the message names both.
        AuthenticationError: the key or the certificates are not the server's. ConfigError: the server expects other
        workers, or another version of luwu.
    """
    rank = int(os.environ.get("RANK", 0)) if rank is None else rank
    workers = int(os.environ.get("WORLD_SIZE", 1)) if workers is None else workers
    if not 0 <= rank < workers:
        raise ConfigError(f"rank: expected 0 to {workers - 1} for {workers} workers, found {rank}")
    switch = os.environ.get("LUWU_SWITCH", "") if switch is None else switch
    return RemoteSession(url, rank, workers, find_credentials(key, key_file, tls), timeouts, switch=switch)
