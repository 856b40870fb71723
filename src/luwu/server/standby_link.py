"""A server's way to its standby: who may be one, what is noted of it, and when it has taken over.

Commits and records travel natively (native/standby). docs/standby.md describes what users see.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from luwu.control import control_pb2 as pb
from luwu.control.credentials import Credentials
from luwu.control.links import native_timing
from luwu.control.status import ask_status
from luwu.control.timeouts import PATIENCE_SECONDS, Timeouts
from luwu.control.waiting import until
from luwu.core import native
from luwu.core.errors import ConfigError, LuwuError, ServerError
from luwu.server.participants import on_one_line
from luwu.server.standby_files import files_of, note_of
from luwu.store.folders import read_identity
from luwu.store.standby_record import StandbyRecord, read_standby, require_own, write_standby

log = logging.getLogger(__name__)


class StandbyLink:
    """Keeps a server's standby. Functions may be called from any thread.

    Args:
        folder: the store's first folder.
        credentials: credentials of the server.
        timeouts: timeouts of the network.
        say: called with a sentence for the workers, in a thread of this object's.

    Attributes:
        sender: what the native servers send to the standby with.

    Raises:
        ConfigError: the store is the standby of another server. Others: see `luwu.store.standby_record.read_standby`.
    """

    def __init__(
        self, folder: Path, credentials: Credentials, timeouts: Timeouts, say: Callable[[str], None] = log.warning
    ) -> None:
        self._folder = folder
        self._credentials = credentials
        self._timeouts = timeouts
        self._say = say
        self._record = read_standby(folder)
        require_own(folder, self._record)
        self._url = self._record.other if self._record.in_sync else ""
        self._replaced = ""
        self._lock = threading.Lock()  # of the record and the URL
        tls = credentials.tls.paths if credentials.tls is not None else None
        self.sender = native.StandbySender(
            native_timing(timeouts), tls, self._record.in_sync, timeouts.health_seconds / 2, timeouts.standby_seconds
        )
        self.note_run()
        self._connected = False
        self._asked_at = float("-inf")
        self._closed = threading.Event()
        self._closing: threading.Timer | None = None
        self._said_wait = False
        self._thread = threading.Thread(target=self._tend, name="luwu-standby", daemon=True)
        if self._record.in_sync:
            log.info("waits for its standby %s: no commit counts without it", self._url)
        self._thread.start()

    @property
    def in_use(self) -> bool:
        """True if there is a standby, or commits wait for one."""
        view = self.sender.view()
        return bool(view["connected"] or view["required"])

    def raise_if_replaced(self) -> None:
        """Raise ServerError once the standby has taken over."""
        if self._replaced:
            raise ServerError(self._replaced)

    def wait_for_it(self) -> None:
        """Return once the standby is there, or there is none, or it is given up.

        Raises:
            ServerError: it has taken over, or is away for longer than ``rejoin_seconds``.
        """
        deadline = time.monotonic() + self._timeouts.rejoin_seconds
        while (view := self.sender.view())["required"] and not view["connected"]:
            self.raise_if_replaced()
            if self._closed.wait(self._timeouts.standby_look_seconds) or time.monotonic() >= deadline:
                raise ServerError(
                    f"this server's commits do not count without its standby {self._url}, which is away; start that "
                    "one, or give it up with luwu standby release"
                )
        self.raise_if_replaced()

    def note_run(self) -> None:
        """Have the run's record travel with each commit; call when it has changed."""
        self.sender.set_note(note_of(self._folder))

    def follow(self, request: pb.FollowRequest, host: str, step: int) -> pb.FollowReply:
        """Tell a standby what the store is; connect to it where it listens.

        Args:
            request: what it asks.
            host: where it asks from.
            step: the store's committed step.

        Raises:
            ServerError: the standby has taken over.
        """
        self.raise_if_replaced()
        url = on_one_line(request.url)
        identity = read_identity(self._folder)
        reply = pb.FollowReply(generation=self._record.generation, step=step)
        if identity is not None:
            reply.uuid, reply.manifest = identity.uuid, identity.manifest.to_json()
        with self._lock:
            reply.in_sync = self.sender.view()["required"] and url == self._url
            if request.port:
                reply.refusal = self._connect(url, reply.uuid, request, host)
        if not request.port and identity is not None:
            reply.files.extend(files_of(self._folder))
        return reply

    def _connect(self, url: str, uuid: str, request: pb.FollowRequest, host: str) -> str:
        """Connect to a standby; with the lock. Returns the reason why not, or ""."""
        view = self.sender.view()
        if request.uuid != uuid:
            return (
                f"standby {url}: expected a copy of this store, found another store; give the standby an empty folder"
            )
        if url != self._url and (view["connected"] or view["required"]):
            state = "connected" if view["connected"] else "away, and no commit counts without it"
            return (
                f"standby {url}: expected no other standby, found {self._url}, which is {state}; stop that one, or "
                "give it up with luwu standby release"
            )
        try:
            self.sender.connect(request.advertise or host, request.port, request.token)
        except LuwuError as error:
            return str(error)
        self._url = url
        log.info("standby %s is connected", url)
        return ""

    def release(self, anyway: bool) -> bool:
        """Give the standby up; True: it knows.

        Raises:
            ServerError: it cannot be told, so it might take over; not with ``anyway``.
        """
        if not self.in_use:
            raise ConfigError("release: expected a server with a standby, found none")
        told = bool(self.sender.release(anyway))
        if not told and not anyway:
            raise ServerError(
                f"the standby {self._url} cannot be told that it is given up, and might take over; make sure that its "
                "server has ended, and give luwu standby release --anyway"
            )
        with self._lock:
            self._write(StandbyRecord(generation=self._record.generation))
            log.warning("standby %s is given up told=%s", self._url, told)
            self._url = ""
        return told

    def status(self) -> pb.StandbyStatus | None:
        """Describe the standby; None where there is none and none has ever taken over."""
        view = self.sender.view()
        if not self._url and not self._record.generation:
            return None
        return pb.StandbyStatus(
            other=self._url,
            connected=view["connected"],
            in_sync=view["required"],
            step=view["step"],
            generation=self._record.generation,
            waits_seconds=view["waits_seconds"] or 0.0,
            trouble=self._replaced or on_one_line(view["lost_because"]),
            bytes=view["bytes_sent"],
            bytes_copied=view["bytes_copied"],
            replaced=bool(self._replaced),
        )

    def figures(self) -> dict[str, Any]:
        """Return what Prometheus gets of a standby; empty where there is none."""
        view = dict(self.sender.view())
        if not view["connected"] and not view["required"]:
            return {}
        return {"standby": {**view, "waits_seconds": view["waits_seconds"] or 0.0}}

    def begin_close(self) -> None:
        """Let commits wait for a standby that is there for ``close_seconds`` more, and for another one not at all."""
        view = self.sender.view()
        seconds = self._timeouts.close_seconds if view["connected"] else 0.0
        self._closing = threading.Timer(seconds, self.sender.close)
        self._closing.daemon = True
        self._closing.start()

    def close(self) -> None:
        """Stop looking after the standby, and end the connection to it. Nothing may commit any more."""
        self._closed.set()
        self._thread.join()
        if self._closing is not None:
            self._closing.cancel()
        self.sender.close()

    def _write(self, record: StandbyRecord) -> None:
        write_standby(self._folder, record)
        self._record = record

    def _tend(self) -> None:
        while not self._closed.wait(self._timeouts.standby_look_seconds):
            try:
                self._look()
            except Exception:  # whatever it is, the server must go on looking
                log.exception("looking after the standby failed")
                self._closed.wait(self._timeouts.standby_ask_seconds)

    def _look(self) -> None:
        view = self.sender.view()
        if view["asks_to_require"]:
            self._require()
        if self._connected and not view["connected"] and self._url:
            why = view["lost_because"]
            log.warning("standby %s is lost why=%r%s", self._url, why, ": commits wait" if view["required"] else "")
        self._connected = view["connected"]
        self._look_for_wait(view["waits_seconds"] or 0.0)
        if view["required"] and not view["connected"] and not self._replaced:
            self._ask_other()

    def _look_for_wait(self, seconds: float) -> None:
        """Tell the workers once of each commit that waits for the standby."""
        if seconds < PATIENCE_SECONDS:
            self._said_wait = False
        elif not self._said_wait:
            self._said_wait = True
            self._say(
                f"a commit waits for the standby {self._url}, without which it does not count "
                f"{until(self._timeouts.standby_seconds - seconds)}"
            )

    def _require(self) -> None:
        """Note that no commit counts without the standby: before it is told, so that it cannot take over unnoticed."""
        with self._lock:
            before = self._record
            self._write(StandbyRecord(other=self._url, in_sync=True, generation=before.generation))
            if not self.sender.require():
                self._write(before)
                return
        log.info("standby %s has every commit from now on", self._url)

    def _ask_other(self) -> None:
        """Ask a standby that is away if it has taken over."""
        if time.monotonic() - self._asked_at < self._timeouts.standby_ask_seconds:
            return
        with suppress(LuwuError):  # it is away
            other = ask_status(self._url, self._credentials, self._timeouts).standby
            if not other.follows and other.generation > self._record.generation:
                self._replaced = (
                    f"the standby {self._url} has taken over, and trains this store's run now; have workers join it, "
                    "and start this server as its standby (docs/standby.md)"
                )
                log.error("%s", self._replaced)
                self.sender.replace(self._replaced)
        self._asked_at = time.monotonic()
