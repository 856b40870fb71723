"""Sessions with servers on the network: `connect`."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from luwu.control import control_pb2 as pb
from luwu.control.address import parse_urls
from luwu.control.credentials import Credentials, TlsFiles, find_credentials
from luwu.control.link_counts import link_counts
from luwu.control.links import TRANSPORTS, LinkSettings, OpenLink, WorkerLink
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.control.waiting import saying
from luwu.core.division import Division, Share, cut_segments, divide, require_one_job, share_out
from luwu.core.errors import ConfigError, LuwuError, ManifestMismatchError, StepOrderError
from luwu.core.manifest import Manifest
from luwu.core.trace import clock_offset, clock_rounds
from luwu.session.link_watch import LinkWatch
from luwu.session.remote_endpoint import RemoteEndpoint
from luwu.session.remote_server import RemoteServer
from luwu.session.session import Session, choose_place, no_model
from luwu.store.run_record import Claim

log = logging.getLogger(__name__)


class RemoteSession(Session):
    """A session with one server on the network, or with several that share a job. Made by `connect`.

    Attributes:
        claim: claim of the run that asks for the store, set before a model attaches; None: the session has no claim.
        on_fenced: called, in a thread of the session, with the rank of a worker whose session a server has ended
            although its process may go on.
    """

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
        super().__init__(rank, workers, timeouts=timeouts)
        self._credentials = credentials
        self._switch = switch
        self.claim: Claim | None = None
        self.on_fenced: Callable[[int], None] = lambda rank: None
        self._lock = threading.Lock()  # a watch may end while the link is being opened
        self._link: WorkerLink | None = None
        self._link_watch: LinkWatch | None = None
        self._progress_calls: dict[RemoteServer, grpc.Future] = {}
        self._error: LuwuError | None = None
        self._noticed: tuple[RemoteServer, str] | None = None
        self._division: Division | None = None
        self._servers: list[RemoteServer] = []
        try:
            for address in parse_urls(url):
                self._servers.append(
                    RemoteServer(
                        address,
                        rank,
                        workers,
                        credentials,
                        timeouts,
                        self._fail,
                        self._notice,
                        self._fenced,
                        self._void,
                    )
                )
            self._transport = self._join(transports)
        except BaseException:
            self._close_servers(leave=True)
            raise
        self._open_link = transports[self._transport]

    def has_store(self, manifest: Manifest) -> bool:
        """Return True where the servers have a store made for this manifest. Called before `attach`."""
        try:
            parts = divide(manifest, len(self._servers)).parts
        except ConfigError:  # too few blocks for so many servers: no such store was made
            return False
        return all(server.has_store(part) for server, part in zip(self._servers, parts, strict=True))

    def initialised(self) -> None:
        """Let the other workers in: the store's first values are committed."""
        for server in self._servers:
            server.control.call("Initialised", pb.InitialisedRequest())

    def set_segments(self, block: int, segments: Sequence[tuple[int, int]]) -> None:
        """Set the optimizer group of each part of a block: ascending (end element, group). Before the first step."""
        assert self._division is not None
        for piece in self._division.pieces[block]:
            request = pb.SetSegmentsRequest(block=piece.block)
            for end, group in cut_segments(segments, piece):
                request.segments.add(end=end, group=group)
            self._servers[piece.server].control.call("SetSegments", request)

    def snapshot(self) -> int:
        """Keep every server's store as the last step left it, and return that step. Call it between two steps."""
        if self._link is None:
            raise no_model()
        calls = [server.control.start("Snapshot", pb.SnapshotRequest(), patient=True) for server in self._servers]
        with saying(log, "the servers to take a snapshot", None):
            steps = [server.control.finish(call).step for server, call in zip(self._servers, calls, strict=True)]
        if len(set(steps)) > 1:
            raise StepOrderError(
                f"snapshot: expected one step on all servers, found {', '.join(map(str, steps))}; take it between two "
                "steps, when no worker is in one"
            )
        return int(steps[0])

    def _make_durable(self) -> int | None:
        if self._link is None:
            raise no_model()
        calls = [server.control.start("MakeDurable", pb.MakeDurableRequest()) for server in self._servers]
        replies = [server.control.finish(call) for server, call in zip(self._servers, calls, strict=True)]
        return min(int(reply.step) for reply in replies) if all(reply.done for reply in replies) else None

    def report(self, report: dict[str, Any]) -> None:
        """Send something that JSON can hold to whoever started the first server."""
        self._servers[0].control.call("Report", pb.ReportRequest(report=json.dumps(report)))

    def _join(self, transports: dict[str, OpenLink]) -> str:
        found = [server.join() for server in self._servers]
        for server, transport in zip(self._servers, found, strict=True):
            if transport not in transports:
                raise ConfigError(
                    f"transport: expected one of {', '.join(transports)}, found {transport!r} at {server.url}; "
                    "install the server's version of luwu"
                )
            if transport != found[0]:
                raise ConfigError(
                    f"transport: expected {found[0]} as at {self._servers[0].url}, found {transport} at {server.url}; "
                    "start all servers of a job with the same --transport"
                )
        if found[0] == "udp" and self._credentials.tls is not None and not self._credentials.plain_data:
            raise ConfigError(
                f"transport: expected one that certificates protect, found udp at {self._servers[0].url}, over which "
                "parameters and gradients travel unencrypted; start the server with --transport tcp, or agree to that "
                "with plain_data=True, --plain-data or LUWU_PLAIN_DATA=1"
            )
        return found[0]

    def _attach(self, manifest: Manifest, shared_window: bool, kept: Sequence[str]) -> bool:
        division = divide(manifest, len(self._servers))
        replies = self._attach_all(division, kept)
        settings = LinkSettings(
            servers=[server.place(reply) for server, reply in zip(self._servers, replies, strict=True)],
            division=division,
            rank=self.rank,
            workers=self.workers,
            manifest=manifest,
            tls=self._credentials.tls,
            timeouts=self._timeouts,
            shared_window=shared_window,
        )
        urls = [server.url for server in self._servers]
        with saying(log, f"the data connection to {', '.join(urls)}", self._timeouts.reconnect_seconds):
            link = self._open_link(settings)
        watch = LinkWatch(link, settings.servers, urls, self._timeouts)
        with self._lock:
            self._link, self._link_watch, self._division = link, watch, division
            error = self._error
        watch.start()
        if error is not None:  # it came before there was a link to tell
            self._fail(error)
        controls = [server.control for server in self._servers]
        self._endpoint = RemoteEndpoint(link, controls, division)
        self._note_attached(replies)
        return any(reply.fresh for reply in replies)

    def _attach_all(self, division: Division, kept: Sequence[str]) -> list[pb.AttachReply]:
        """Attach to all servers at once.

        Each answers when all workers have come, and some when there are first values.
        """
        shares = [Share()]
        if len(self._servers) > 1:
            urls = [server.url for server in self._servers]
            require_one_job([server.standing() for server in self._servers], urls)
            shares = share_out([server.standing(self._jobs) for server in self._servers], urls)
        run = "" if self.claim is None else self.claim.to_json()
        calls = [
            server.attach(part, share, self._transport, self._switch, run, kept, self._jobs)
            for server, part, share in zip(self._servers, division.parts, shares, strict=True)
        ]
        others = "the server to open its store, and for the other workers and the switches of the run,"
        with saying(log, others, self._timeouts.gather_seconds):
            replies = [server.control.finish(call) for server, call in zip(self._servers, calls, strict=True)]
        for server, reply in zip(self._servers, replies, strict=True):
            if (reply.step, reply.attempts) != (replies[0].step, replies[0].attempts):
                raise ManifestMismatchError(
                    f"the servers do not stand together: expected step {replies[0].step} after {replies[0].attempts} "
                    f"attempts, found {reply.step} after {reply.attempts} at {server.url}; name the servers whose "
                    "stores belong together"
                )
            if reply.worker_return_seconds != replies[0].worker_return_seconds:
                raise ConfigError(
                    f"worker_return_seconds: expected {replies[0].worker_return_seconds:g} at {server.url} as at "
                    f"{self._servers[0].url}, found {reply.worker_return_seconds:g}; start all servers of a job with "
                    "the same --worker-return-seconds"
                )
            if reply.aggregate != replies[0].aggregate:
                raise ConfigError(
                    f"aggregate: expected {replies[0].aggregate} at {server.url} as at {self._servers[0].url}, found "
                    f"{reply.aggregate}; start all servers of a job with the same --aggregate"
                )
        return replies

    @property
    def _jobs(self) -> list[int]:
        return [server.job for server in self._servers]

    def _notice(self, server: RemoteServer, text: str) -> None:
        with self._lock:
            before, self._noticed = self._noticed, (server, text)
        if before is None or before[0] is server or before[1] != text:  # else another server has just said the same
            log.warning("%s", text)

    def _void(self, server: RemoteServer, attempt: int) -> None:
        endpoint = self._endpoint
        if isinstance(endpoint, RemoteEndpoint):
            endpoint.annul(attempt, self._servers.index(server))

    def _fenced(self, rank: int) -> None:
        self.on_fenced(rank)

    def _fail(self, error: LuwuError) -> None:
        with self._lock:
            self._error = self._error or error
            link, watch = self._link, self._link_watch
        if watch is not None:
            watch.stop()
        if link is not None:
            link.fail(type(error).__name__, str(error))

    def _close_servers(self, *, leave: bool) -> None:
        """End the sessions. When one server has ended, the others are told, and tell the other workers."""
        failure = "" if leave or self._error is None else str(self._error)
        for server in self._servers:
            server.close(leave=leave, failure=failure)

    def _divide(self, request: pb.DivideRequest) -> pb.DivideReply:
        return self._servers[0].control.call("Divide", request)

    def _server_clocks(self) -> list[tuple[int, int]]:
        def clock_of(server: int) -> tuple[int, int]:
            return clock_offset(clock_rounds(lambda: int(self._ask_trace(server).clock_ns)))

        return [clock_of(server) for server in range(len(self._servers))]

    def _ask_trace(self, server: int = 0) -> pb.TraceRecordsReply:
        return self._servers[server].control.call("TraceRecords", pb.TraceRecordsRequest())

    def _send_records(self, request: pb.TraceRecordsRequest) -> None:
        self._servers[0].control.call("TraceRecords", request)

    def link_counts(self) -> pb.LinkCounts | None:
        """Return what this worker has exchanged with its servers over the network; None: nothing is attached."""
        at, link = time.monotonic(), self._link
        return None if link is None else link_counts(link.stats(), self._transport, at)

    def send_progress(self, progress: pb.ProgressRequest) -> None:
        """Send what this worker does to every server: each must know when it hangs."""
        for server in self._servers:
            call = self._progress_calls.get(server)
            if call is None or call.done():  # else the network is slow, and this is no news
                self._progress_calls[server] = server.control.start("Progress", progress)

    def _end(self, *, failed: bool) -> None:
        if self._link_watch is not None:
            self._link_watch.stop()
        self._close_servers(leave=not failed)
        if self._link is not None:
            self._link.close()


def connect(
    url: str | None = None,
    *,
    rank: int | None = None,
    workers: int | None = None,
    key: str | bytes | None = None,
    key_file: str | Path | None = None,
    tls: TlsFiles | None = None,
    timeouts: Timeouts = TIMEOUTS,
    switch: str | None = None,
    plain_data: bool | None = None,
) -> RemoteSession:
    """Join a server on the network (`luwu server`) as one of its workers.

    Args:
        url: ``luwu://HOST:PORT``, as the server says when it starts; of several servers that share the model's blocks
            ``luwu://HOST:PORT,HOST:PORT``, always in the same order; default: LUWU_SERVER.
        rank, workers: this process among the run's; default: RANK and WORLD_SIZE of the environment, as torchrun sets
            them, else one worker.
        key, key_file: the job key, or the file that has it; default: LUWU_JOB_KEY or LUWU_JOB_KEY_FILE.
        tls: certificates for mutual TLS; default: LUWU_TLS_CERT, LUWU_TLS_KEY and LUWU_TLS_CA.
        timeouts: timeouts of the network.
        switch: name of the switch above this worker, over the transport udp; default: LUWU_SWITCH, else the server's
            choice.
        plain_data: agree that over the transport udp parameters and gradients travel unencrypted although ``tls`` is
            given; default: True if LUWU_PLAIN_DATA is 1.

    Raises:
        ServerError: nobody answered at an address within ``connect_seconds``; the message names both.
        AuthenticationError: the key or the certificates are not the server's. ConfigError: the server expects other
            workers, or another version of luwu; or no server is named.
    """
    url = os.environ.get("LUWU_SERVER") if url is None else url
    if not url:
        raise ConfigError(
            "url: expected luwu://HOST:PORT, or LUWU_SERVER in the environment, found neither; luwu launch slurm and "
            "LuwuTrainer set that variable"
        )
    rank, workers = choose_place(rank, workers)
    switch = os.environ.get("LUWU_SWITCH", "") if switch is None else switch
    credentials = find_credentials(key, key_file, tls, plain_data)
    return RemoteSession(url, rank, workers, credentials, timeouts, switch=switch)
