"""Sessions on one host: `open` embeds the server in this process, `join` finds one through its socket."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from luwu.control import control_pb2 as pb
from luwu.control.frames import SOCKET_NAME
from luwu.control.link_counts import link_counts
from luwu.control.local_client import LocalClient
from luwu.control.waiting import saying
from luwu.core import native
from luwu.core.durability import parse_durable
from luwu.core.errors import ConfigError, LuwuError
from luwu.core.manifest import Manifest
from luwu.core.quantities import LONGEST_SECONDS, parse_size
from luwu.core.room import DISK_FULL_WAIT_SECONDS, Room
from luwu.core.settings import read_toml
from luwu.server.server import LocalServer
from luwu.session.session import Session, choose_place

DEFAULT_MEMORY = "8GiB"
_LEAVE_SECONDS = 60.0

log = logging.getLogger(__name__)


class LocalSession(Session):
    """A session with a server of this host, through its Unix socket and shared memory."""

    def __init__(
        self,
        control: LocalClient,
        rank: int,
        workers: int,
        server: LocalServer | None = None,
        room: Room | None = None,
    ) -> None:
        super().__init__(rank, workers, room)
        self._control = control
        self._server = server

    @property
    def server(self) -> LocalServer | None:
        """The server that this process embeds, if it does."""
        return self._server

    def _attach(self, manifest: Manifest, shared_window: bool, kept: Sequence[str]) -> bool:
        first_values = ", and for worker 0 to write its first values" if self.rank else ""
        request = pb.AttachRequest(manifest=manifest.to_json())
        with saying(log, f"the server to open the store{first_values}", None):
            return self._control.call_with_files("Attach", request, partial(self._take, shared_window))

    def _take(self, shared_window: bool, reply: pb.AttachReply, files: list[int]) -> bool:
        self._endpoint = native.Endpoint(files, self.rank, self._control.fileno(), shared_window)
        self._note_attached([reply])
        return reply.fresh

    def has_store(self, manifest: Manifest) -> bool:
        """Return true when the server has a store that was made for this model's blocks. Before `attach`."""
        return bool(self._control.call("Standing", pb.StandingRequest(manifest=manifest.to_json())).has_model)

    def initialised(self) -> None:
        """Let the other workers in: the store's first values are committed."""
        self._control.call("Initialised", pb.InitialisedRequest())

    def set_segments(self, block: int, segments: Sequence[tuple[int, int]]) -> None:
        """Set the optimizer group of each part of a block: ascending (end element, group). Before the first step."""
        parts = [pb.Segment(end=end, group=group) for end, group in segments]
        self._control.call("SetSegments", pb.SetSegmentsRequest(block=block, segments=parts))

    def snapshot(self) -> int:
        """Keep the store as the last step left it, and return that step. Call it between two steps."""
        with saying(log, "the server to take a snapshot", None):
            return int(self._control.call("Snapshot", pb.SnapshotRequest()).step)

    def _make_durable(self) -> int | None:
        reply = self._control.call("MakeDurable", pb.MakeDurableRequest())
        return int(reply.step) if reply.done else None

    def report(self, report: dict[str, Any]) -> None:
        """Send something that JSON can hold to whoever started the server; nothing comes back."""
        self._control.post("Report", pb.ReportRequest(report=json.dumps(report)))

    def _divide(self, request: pb.DivideRequest) -> pb.DivideReply:
        return self._control.call("Divide", request)

    def _server_clocks(self) -> list[tuple[int, int]]:
        return [(0, 0)]  # one machine has one

    def _ask_trace(self) -> pb.TraceRecordsReply:
        return self._control.call("TraceRecords", pb.TraceRecordsRequest())

    def _send_records(self, request: pb.TraceRecordsRequest) -> None:
        self._control.post("TraceRecords", request)

    def link_counts(self) -> pb.LinkCounts | None:
        """Return what this worker has exchanged with its server over shared memory; None: nothing is attached."""
        at = time.monotonic()
        return None if self._endpoint is None else link_counts(self._endpoint.stats(), "shm", at)

    def send_progress(self, progress: pb.ProgressRequest) -> None:
        """Send what this worker does."""
        self._control.post("Progress", progress)

    def _end(self, *, failed: bool) -> None:
        try:
            if not failed:
                with suppress(LuwuError):  # the server may be gone already
                    self._control.post("Leave", pb.LeaveRequest())
                if self._server is not None:
                    with saying(log, "the other workers to leave", _LEAVE_SECONDS):
                        self._server.wait_for_leaves(_LEAVE_SECONDS)
        finally:
            try:
                if self._server is not None:
                    self._server.close()
            finally:
                self._control.close()


def open(
    path: str | Path,
    *,
    stores: Sequence[str | Path] | None = None,
    memory: str | int = DEFAULT_MEMORY,
    rank: int | None = None,
    workers: int | None = None,
    disk_full_wait_seconds: float = DISK_FULL_WAIT_SECONDS,
    durable: str = "step",
) -> LocalSession:
    """Open a run in this process, which is then its own server, like SQLite.

    Under torchrun (or with ``rank`` and ``workers``) the processes of this host share one run: rank 0 embeds the
    server, the others join it through the run folder.

    Args:
        path: folder of the run; made where missing.
        stores: folders to stripe the store over; default: ``path/store``.
        memory: the server's budget for parameters, optimizer states and gradients, such as ``8GiB``.
        rank, workers: this process among the run's; default: RANK and WORLD_SIZE of the environment, else one.
        disk_full_wait_seconds: the longest time that a full disk pauses the run; the logger ``luwu.room`` reports
            pauses. 0: a full disk ends the run.
        durable: the steps that are put on the disk: each ``step``, every ``10 steps``, every ``5 min``, or only at a
            ``stop``, which is `Session.close`. A process that dies loses the steps since the last of them.

    Raises:
        StoreLockedError: another process serves this folder. ConfigError: settings that cannot work.
    """
    rank, workers = choose_place(rank, workers)
    if not 0 <= disk_full_wait_seconds <= LONGEST_SECONDS:
        raise ConfigError(
            f"disk_full_wait_seconds: expected 0 to {LONGEST_SECONDS:.0f}, found {disk_full_wait_seconds}; choose "
            "a time in that range"
        )
    commit_points = parse_durable(durable, "durable: ")
    run_dir = Path(path)
    room = Room(disk_full_wait_seconds)
    if rank > 0:
        return join(run_dir / SOCKET_NAME, rank, workers, room=room)
    folders = [Path(folder) for folder in stores] if stores else None
    if folders is None:
        _check_stores(run_dir)
    server = LocalServer(
        run_dir,
        folders,
        parse_size(memory),
        workers,
        disk_full_wait_seconds=disk_full_wait_seconds,
        commit_points=commit_points,
    )
    return _embed(server, rank, workers, room)


def _check_stores(run_dir: Path) -> None:
    """Raise ConfigError for the folder of a run of `luwu train` whose store is elsewhere."""
    settings = run_dir / "config.toml"
    if not settings.is_file():
        return
    run = read_toml(settings).get("run")
    named = run.get("stores") if isinstance(run, dict) else None
    if isinstance(named, list) and named and [Path(str(name)) for name in named] != [(run_dir / "store").absolute()]:
        folders = ", ".join(map(str, named))
        raise ConfigError(
            f"{run_dir}: expected stores={named}, found none: the store of this run is in {folders}, and a new one "
            "would be made here; give stores, or open another folder"
        )


def open_to_read(path: str | Path, stores: Sequence[Path], memory: str | int) -> LocalSession:
    """Open a store, or a snapshot of one, in this process to pull from it alone; others may do the same.

    Args:
        path: a folder for the session itself.
        stores: the store's folders.
        memory: the server's budget.
    """
    return _embed(LocalServer(path, list(stores), parse_size(memory), 1, read_only=True), 0, 1)


def _embed(server: LocalServer, rank: int, workers: int, room: Room | None = None) -> LocalSession:
    try:
        return join(server.socket_path, rank, workers, server=server, room=room)
    except BaseException:
        server.close()
        raise


def join(
    socket_path: str | Path,
    rank: int,
    workers: int,
    *,
    server: LocalServer | None = None,
    room: Room | None = None,
) -> LocalSession:
    """Join the server that listens at a socket of this host, waiting up to a minute for it to be there.

    Raises:
        ServerError: nobody listens there. ConfigError: there is no such rank, or the server expects other workers.
    """
    rank, workers = choose_place(rank, workers)
    control = LocalClient(Path(socket_path))
    try:
        control.join(rank, workers)
    except BaseException:
        control.close()
        raise
    return LocalSession(control, rank, workers, server, room)
