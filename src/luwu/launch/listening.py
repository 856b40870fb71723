"""The server of a launcher whose run has workers on other machines: it is in this process, and on the network."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any

from luwu.control.address import HostPort, numeric, parse_host_port
from luwu.core.closing import close_after
from luwu.core.errors import LuwuError, StoreError, StoreSpaceError
from luwu.core.room import RoomWait, SayRoom
from luwu.launch.folder import RunFolder
from luwu.launch.job import CredentialFiles, ServerAccess
from luwu.launch.machines import Machines
from luwu.launch.restarts import WORKER_RETURN_SECONDS
from luwu.launch.settings import Settings
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings
from luwu.store.folders import make_folder
from luwu.store.opening import lock_folder

LOG = logging.getLogger("luwu.server")
GATE_LOG = "luwu.server.gate"


class RefusalRelay(logging.Handler):
    """Passes on whom the server has refused; what else it logs the run's workers report, or its error says."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on."""
        if record.name == GATE_LOG:
            self._say(record.getMessage())


def find_key(folder: RunFolder, given: CredentialFiles) -> CredentialFiles:
    """Return the credentials that were given, or a key of the run's own; it is made where there is none."""
    found = given.find()
    if found.key is not None or found.tls is not None:
        return given
    make_folder(folder.path)
    path = folder.key_path
    if not path.exists() or not path.stat().st_size:
        made = path.with_name(f"{path.name}.new")  # so that a crash or a full disk leaves no part of a key
        made.unlink(missing_ok=True)
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        made.replace(path)
    return given.model_copy(update={"key_file": str(path)})


def reachable(host: str) -> str:
    """Return a number of this machine for others, where it listens everywhere; else the host as it is.

    A number needs no names on other machines. It is that of the way to everywhere, if there is one.
    """
    if host not in ("0.0.0.0", "::"):
        return host
    family, other = (socket.AF_INET, "192.0.2.1") if host == "0.0.0.0" else (socket.AF_INET6, "2001:db8::1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting sends nothing
            probe.connect((other, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return host


def join_words(url: str, files: CredentialFiles) -> str:
    """Return the sentence that tells how other machines join."""
    command = f"luwu train --join {url}"
    if files.tls is not None:
        return (
            f"on each other machine, with a certificate of its own: {command} --tls-cert ... --tls-key ... --tls-ca ..."
        )
    if files.key_file is None:
        return f"on each other machine, with the same key: {command}"
    return f"on each other machine, with a copy of {files.key_file}: {command} --key-file job.key"


class ListeningServer:
    """A server in this process for workers on any machine. It holds the run folder for this launcher.

    Until it is closed, what it logs goes to the user rather than to standard error, which the display uses.

    Args:
        settings: of the run.
        folder: the run's folder.
        given: the credentials that were given; without any the run has a key of its own.
        machines: the launchers on other machines.
        on_room: called when the store waits for room on its disk, and when it goes on.
        gives_up: tells whether a run that ends is to wait no longer for room on a full disk.
        say: called with a sentence for the user.

    Attributes:
        access: the server, for workers on this machine.
        join_words: sentence with the command that joins the run on another machine.
    """

    socket_path = None

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        given: CredentialFiles,
        machines: Machines,
        on_room: SayRoom,
        gives_up: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        make_folder(folder.path)
        self._lock = lock_folder(folder.path, "run folder")
        self._machines = machines
        self._closed = False
        self._relay = RefusalRelay(say)
        LOG.addHandler(self._relay)
        try:
            files = find_key(folder, given)
            credentials = files.find()
            self._server = NetworkServer(
                _server_settings(settings, folder),
                credentials,
                on_room=on_room,
                gives_up=gives_up,
                on_report=machines.note,
                launchers=machines,
            )
        except BaseException:
            self._release()
            raise
        listen = parse_host_port(settings.run.listen)
        own = HostPort(numeric(listen.host), self._server.port).url
        self.access = ServerAccess(
            url=own if credentials.tls is None else self._server.url, key_file=files.key_file, tls=files.tls
        )
        host = listen.host if credentials.tls is not None else reachable(listen.host)
        url = self._server.url if host == listen.host else HostPort(host, self._server.port).url
        self.join_words = join_words(url, files)

    def __enter__(self) -> ListeningServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after(error, self.close)

    def close(self) -> None:
        """Stop serving, and let another launcher have the run folder.

        Raises:
            StoreError, StoreSpaceError: a step that was answered could not be written; the server has stopped.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._server.close()
        finally:
            self._release()
        if isinstance(failure := self._server.failure, (StoreError, StoreSpaceError)):
            raise failure

    def _release(self) -> None:
        LOG.removeHandler(self._relay)
        self._machines.close()
        self._lock.close()

    def failure(self) -> LuwuError | None:
        """Return the error that the run failed with, or None."""
        return self._server.failure

    def stats(self) -> dict[str, Any]:
        """Counts since the store was opened for the present run; empty while it is closed."""
        return self._server.stats()

    def figures(self) -> dict[str, Any]:
        """Return the stats as `luwu.control.figures.SERVER` reads them."""
        return self._server.figures()

    def behind(self) -> dict[str, float]:
        """Return the seconds that others have waited for each worker, by rank."""
        return self._server.behind()

    def note_wait(self, wait: RoomWait | None) -> None:
        """Note that a full disk of the run folder makes this launcher wait, or with None that it goes on."""
        self._server.note_wait(wait)


def _server_settings(settings: Settings, folder: RunFolder) -> ServerSettings:
    run = settings.run
    return ServerSettings(
        stores=tuple(map(str, folder.stores(settings))),
        workers=run.workers,
        memory=run.memory,
        listen=run.listen,
        durable=run.durable,
        snapshot_every=run.snapshot_every,
        snapshot_keep=run.snapshot_keep,
        disk_full_wait_seconds=run.disk_full_wait_seconds,
        worker_return_seconds=WORKER_RETURN_SECONDS if run.restarts else 0.0,
        step_deadline_seconds=run.step_deadline_seconds,
        aggregate=run.aggregate,
    )
