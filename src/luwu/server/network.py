"""The server of a network: one store, one run of workers after another, for as long as the process lives."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from grpc_health.v1 import health_pb2

from luwu.control import control_pb2 as pb
from luwu.control import control_pb2_grpc
from luwu.control.address import HostPort, parse_host_port, refusal_to_listen, url_of_server
from luwu.control.credentials import Credentials
from luwu.control.door import FEWEST_STRANGERS, ControlDoor, answer_health, bind_inside, make_grpc
from luwu.control.exposition import Exposition, Labelled, Table
from luwu.control.figures import SERVER, WORKER_BEHIND
from luwu.control.rpc import ROOM_SERVICE, SERVICE
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.core.aggregation import trims_for
from luwu.core.closing import close_after
from luwu.core.division import Share, Standing
from luwu.core.errors import ConfigError, LuwuError, ServerError
from luwu.core.manifest import Manifest
from luwu.core.room import RoomWait, SayRoom, log_room
from luwu.server.cores import TRANSPORTS, CoreSettings, NetworkCore, StartCore
from luwu.server.description import behind_of, figures_of
from luwu.server.folders import claims_of, standing_of, step_at_rest
from luwu.server.gate import Gate
from luwu.server.grpc_carrier import servicer_of
from luwu.server.launchers import NO_LAUNCHERS, Launchers
from luwu.server.network_service import NetworkService
from luwu.server.run import OpenCore
from luwu.server.runs import Runs
from luwu.server.settings import ServerSettings
from luwu.server.standby_link import StandbyLink
from luwu.server.topology import PlanTopology, star
from luwu.server.tree import UdpPlan
from luwu.store.folders import has_store
from luwu.store.opening import Store, lock_made, open_store

log = logging.getLogger(__name__)


def check_protection(settings: ServerSettings, credentials: Credentials) -> None:
    """Raise ConfigError if participants would have to prove nothing, or if data would travel unprotected unasked."""
    if credentials.key is None and credentials.tls is None:
        raise ConfigError(
            "job key: expected a key or TLS certificates, found neither; make a key with "
            "`openssl rand -hex 32 > job.key` and give it to server and workers with --key-file"
        )
    if settings.transport == "udp" and credentials.tls is not None and not settings.plain_data:
        raise ConfigError(
            f"transport udp: expected no certificates, found {credentials.tls.certificate}; over udp parameters "
            "and gradients travel unencrypted: use --transport tcp, or agree to that with --plain-data"
        )


def _most_strangers(settings: ServerSettings) -> int:
    """Return the most connections of participants that have proved nothing."""
    return max(FEWEST_STRANGERS, 2 * settings.workers)


class NetworkServer:
    """Serves a store to the workers of a network until it is closed. Threads of its own do everything.

    Args:
        settings: settings of the server.
        credentials: key, certificates, or both, which participants must prove.
        timeouts: timeouts of the network.
        on_report: called with (rank, report) for everything a worker reports.
        start_core: makes the native server; default: the one of ``settings.transport``.
        plan: the tree of a run; default: that of ``settings.transport``.
        gives_up: tells whether a run that ends is to wait no longer for room on a full disk.
        on_room: called when the store waits for room on its disk, and when it goes on.
        launchers: what is done for launchers on other machines.

    Raises:
        ConfigError: settings that cannot work, or neither key nor certificates. ServerError: it cannot listen there.
        StoreLockedError: another server has this store. StorePermissionError, StoreSpaceError: the folders cannot be
        used.
    """

    def __init__(
        self,
        settings: ServerSettings,
        credentials: Credentials,
        timeouts: Timeouts = TIMEOUTS,
        on_report: Callable[[int, dict[str, Any]], None] | None = None,
        start_core: StartCore | None = None,
        plan: PlanTopology | None = None,
        gives_up: Callable[[], bool] = lambda: False,
        on_room: SayRoom = log_room,
        launchers: Launchers = NO_LAUNCHERS,
    ) -> None:
        check_protection(settings, credentials)
        self._timeouts = timeouts
        self._on_room = on_room
        self._listen = parse_host_port(settings.listen)
        self._tls = credentials.tls
        folders = [Path(folder) for folder in settings.stores]
        self._lock = lock_made(folders)
        plan = plan or self._plan(settings, timeouts)
        self._standby = StandbyLink(folders[0], credentials, timeouts, self._tell_workers)
        self._grpc = make_grpc(settings.workers, _most_strangers(settings), timeouts)
        self._health = answer_health(self._grpc)
        self._runs = Runs(
            settings.workers,
            settings.switches,
            self._core_opener(settings, folders, start_core or TRANSPORTS[settings.transport]),
            settings.advertise,
            plan,
            timeouts,
            plan.failure if isinstance(plan, UdpPlan) else lambda: None,
            self._tell_room,
            gives_up,
            functools.partial(step_at_rest, folders),
            settings.worker_return_seconds,
            settings.step_deadline_seconds,
            settings.min_workers or None,
            launchers,
        )
        self._gate = Gate(credentials, timeouts.challenge_seconds)
        self._door = ControlDoor(timeouts)
        service = NetworkService(
            self._runs,
            self._gate,
            self._door,
            settings.transport,
            functools.partial(self._standing, folders, uuid.uuid4().hex, settings.commit_words),
            functools.partial(has_store, folders),
            claims_of(folders[0]),
            on_report or (lambda rank, report: None),
            launchers,
            self._standby,
            settings.aggregate,
        )
        control_pb2_grpc.add_ControlServicer_to_server(servicer_of(service), self._grpc)
        try:
            self._start(settings)
        except BaseException:
            self._finish()
            raise

    def __enter__(self) -> NetworkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after(error, self.close)

    @property
    def url(self) -> str:
        """URL that workers connect to. A server that listens everywhere names its machine."""
        return url_of_server(self._listen.host, self.port)

    @property
    def step(self) -> int:
        """Committed steps of the store, also while no run has it open."""
        return self._runs.run.step

    @property
    def refused(self) -> int:
        """Joins refused since the start because the job key was wrong or missing."""
        return self._gate.refused

    def stats(self) -> dict[str, Any]:
        """Counts since the store was opened for the present run; empty while it is closed."""
        return self._runs.run.stats()

    @property
    def failure(self) -> LuwuError | None:
        """The error of the last run that has failed; None: none has."""
        return self._runs.failures[1]

    def figures(self) -> dict[str, Any]:
        """Return the stats as `luwu.control.figures.SERVER` reads them."""
        return figures_of(self._runs.run) | {"failures": self._runs.failures[0]} | self._standby.figures()

    def behind(self) -> dict[str, float]:
        """Return the seconds that others have waited for each worker, by rank."""
        return behind_of(self._runs.run)

    def note_wait(self, wait: RoomWait | None) -> None:
        """Note that a full disk of the run folder makes this process's owner wait, or with None that it goes on."""
        self._runs.run.launcher_wait = wait
        self._show_room(wait)

    @property
    def metrics_port(self) -> int:
        """Port that answers Prometheus; 0: nothing does."""
        return self._exposition.port

    def close(self) -> None:
        """Stop serving. The store stands at the last step that was answered; workers get ServerError.

        Raises:
            StoreError, StoreSpaceError: a step that was answered could not be written; the server has stopped.
        """
        self._health.enter_graceful_shutdown()
        try:
            self._finish()
        finally:
            self._exposition.close()

    def _start(self, settings: ServerSettings) -> None:
        bind_inside(self._grpc, self._door, self._tls)
        self._grpc.start()
        self.port = self._door.open(self._listen, _most_strangers(settings))
        self._check_data_port(settings.data_port)
        behind = Labelled(WORKER_BEHIND, "rank", self.behind)
        self._exposition = Exposition(settings.metrics, [Table(SERVER, self.figures)], [behind])
        for name in ("", SERVICE, ROOM_SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def _finish(self) -> None:
        self._door.shut()
        self._standby.begin_close()
        self._runs.begin_close()
        self._grpc.stop(self._timeouts.close_seconds).wait()
        self._door.close()
        try:
            self._runs.finish_close()
        finally:
            self._standby.close()
            self._lock.close()

    def _standing(self, folders: list[Path], new_uuid: str, commit_points: str) -> Standing:
        """Return the state of the store, as `share_out` needs it.

        One of several servers opens its store at a step that all have. A worker that comes later must name the same
        one, although the store is further by then.
        """
        run = self._runs.run
        share = run.opened_share
        if share is None:
            return standing_of(folders, new_uuid, commit_points)
        return Standing(share.uuid, () if share.step is None else (share.step,), commit_points, run.under_way)

    def _tell_workers(self, text: str) -> None:
        log.warning("%s", text)
        self._runs.run.notify(pb.Notice(text=text))

    def _tell_room(self, wait: RoomWait | None) -> None:
        """Tell ``on_room`` and health checks that the server waits for room on a full disk, and when it goes on."""
        self._show_room(wait)
        self._on_room(wait)

    def _show_room(self, wait: RoomWait | None) -> None:
        """Tell health checks that a full disk pauses the run, or with None that it goes on."""
        status = health_pb2.HealthCheckResponse
        self._health.set(ROOM_SERVICE, status.SERVING if wait is None else status.NOT_SERVING)

    def _check_data_port(self, port: int) -> None:
        """Raise ServerError if the data plane, which opens with each run, cannot listen at its port."""
        place = HostPort(self._listen.host, port)
        refusal = refusal_to_listen(place) if port else ""
        if refusal:
            raise ServerError(
                f"cannot listen at {place}: {refusal}; choose another --data-port, 0 for any that is free, or end who "
                "listens there"
            )

    def _plan(self, settings: ServerSettings, timeouts: Timeouts) -> PlanTopology:
        if settings.transport != "udp":
            if settings.switches or settings.multicast:
                raise ConfigError("switches, multicast: expected with transport udp, found tcp; use --transport udp")
            return star
        return UdpPlan(self._listen.host, settings.form, settings.multicast, timeouts)

    def _core_opener(self, settings: ServerSettings, folders: list[Path], start_core: StartCore) -> OpenCore:
        def open_core(manifest: Manifest, job: int, share: Share, workers: int) -> NetworkCore:
            if share.servers > 1 and settings.commit_points.seconds > 0:
                raise ConfigError(
                    f"durable: expected steps or stop for one of {share.servers} servers, found {settings.durable!r}: "
                    "each has a clock of its own, and all must commit the same steps; name a number of steps"
                )
            if share.servers > 1 and self._standby.in_use:
                raise ConfigError(
                    f"standby: expected one server, found one of {share.servers} with a standby; give the standby up "
                    "with luwu standby release: several servers cannot have one yet"
                )
            self._standby.raise_if_replaced()
            wanted = CoreSettings(
                memory_bytes=settings.memory,
                workers=workers,
                optimizer_threads=settings.optimizer_threads,
                address=self._listen.host,
                port=settings.data_port,
                udp_port=settings.udp_port,
                job=job,
                share=share,
                tls=self._tls,
                timeouts=self._timeouts,
                snapshots=settings.snapshots,
                disk_full_wait_seconds=settings.disk_full_wait_seconds,
                commit_points=settings.commit_points,
                standby=None if share.servers > 1 else self._standby.sender,
                trims=trims_for(settings.aggregate, workers),
            )

            def start(store: Store) -> NetworkCore:
                return start_core(store, wanted)

            return open_store(folders, manifest, start, with_chunks=True, uuid=share.uuid)

        return open_core
