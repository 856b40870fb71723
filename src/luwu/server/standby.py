"""A standby: a store that follows a server on another machine, and takes over when it is told, or by itself.

docs/standby.md describes what users see. Once it has taken over, the store is a server's like any other.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from luwu.control import control_pb2 as pb
from luwu.control import control_pb2_grpc
from luwu.control.address import HostPort, parse_host_port, parse_url, url_of_server
from luwu.control.credentials import Credentials, follow_request
from luwu.control.door import FEWEST_STRANGERS, ControlDoor, answer_health, bind_inside, make_grpc
from luwu.control.links import native_timing
from luwu.control.questions import ask_proved
from luwu.control.status import ask_status
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.core import native
from luwu.core.closing import close_after
from luwu.core.errors import AuthenticationError, ConfigError, LuwuError, ServerError
from luwu.core.manifest import Manifest
from luwu.core.native import block_specs
from luwu.server.gate import Gate
from luwu.server.grpc_carrier import servicer_of
from luwu.server.run import DATA_TOKEN_BYTES
from luwu.server.settings import ServerSettings
from luwu.server.standby_files import write_files, write_note
from luwu.server.standby_service import StandbyService
from luwu.store.findings import say_findings
from luwu.store.folders import StoreIdentity, read_identity, require_stripes, write_identity
from luwu.store.opening import lock_made
from luwu.store.standby_record import StandbyRecord, read_standby, write_standby

GIVEN_UP = "was given up, and follows no more; start it again to follow"

log = logging.getLogger(__name__)


def serves_itself(settings: ServerSettings, credentials: Credentials, timeouts: Timeouts) -> bool:
    """Return True where this store is not to follow its server: it was that one's server, or has taken over from it.

    It follows a server that has taken over since. Where that one does not answer, it serves, which is safe: if the
    other has taken over, no commit of this store counts.
    """
    record = read_standby(Path(settings.stores[0]))
    if record.follows or record.other != settings.standby_of:
        return False
    with suppress(ServerError):
        other = ask_status(settings.standby_of, credentials, timeouts).standby
        return other.follows or other.generation <= record.generation
    return True


class Standby:
    """Follows a server until it is closed, or has taken over. Threads of its own do everything.

    Args:
        settings: settings of the server that this is when it has taken over, with ``standby_of``.
        credentials: key, certificates, or both, as the server's.
        timeouts: timeouts of the network.

    Attributes:
        url: URL that it answers at, and that the server has, once it has taken over.

    Raises:
        ConfigError: the folder's store is no standby's. ServerError: it cannot listen there.
        StoreLockedError: another server has this store. StorePermissionError, StoreSpaceError: the folders cannot be
        used.
    """

    def __init__(self, settings: ServerSettings, credentials: Credentials, timeouts: Timeouts = TIMEOUTS) -> None:
        self._settings = settings
        self._credentials = credentials
        self._timeouts = timeouts
        self._server = parse_url(settings.standby_of).url
        self._listen = parse_host_port(settings.listen)
        self._folders = [Path(folder) for folder in settings.stores]
        self._lock = lock_made(self._folders)
        self._turn = threading.RLock()  # of the record, the receiver, and who takes over
        self._record = self._record_of_follower()
        self._receiver: native.StandbyReceiver | None = None
        self._receiver_step = 0
        self._uuid = ""
        self._note = b""
        self._trouble = ""
        self._heard = False  # of the server, since this was started
        self._refusal: LuwuError | None = None
        self._asked_at = float("-inf")
        self._taken_over = False
        self._given_up = False
        self._closed = threading.Event()
        self._open_receiver(read_identity(self._folders[0]))
        self._grpc = make_grpc(1, FEWEST_STRANGERS, timeouts)
        answer_health(self._grpc)
        self._door = ControlDoor(timeouts)
        service = StandbyService(Gate(credentials, timeouts.challenge_seconds), self._door, self._server, self)
        control_pb2_grpc.add_ControlServicer_to_server(servicer_of(service), self._grpc)
        self._thread = threading.Thread(target=self._tend, name="luwu-follows", daemon=True)
        try:
            bind_inside(self._grpc, self._door, credentials.tls)
            self._grpc.start()
            self.port = self._door.open(self._listen, FEWEST_STRANGERS)
        except BaseException:
            self._finish()
            raise
        self.url = url_of_server(self._listen.host, self.port)
        if self.url == self._server:
            self._finish()
            raise ConfigError(f"--standby-of: expected another server than this one, found {self._server}")
        self._thread.start()

    def __enter__(self) -> Standby:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after(error, self.close)

    @property
    def listens_at(self) -> str:
        """HOST:PORT of the control plane."""
        return str(HostPort(self._listen.host, self.port))

    @property
    def taken_over(self) -> bool:
        """True once the store is a server's: close this, and serve."""
        return self._taken_over

    @property
    def step(self) -> int:
        """Steps of the last commit that the standby has."""
        with self._turn:
            return self._receiver.view()["step"] if self._receiver is not None else self._receiver_step

    def raise_if_refused(self) -> None:
        """Raise the error with which the server has refused this standby for good; AuthenticationError."""
        if self._refusal is not None:
            raise self._refusal

    def take_over(self, anyway: bool = False) -> int:
        """Make the store a server's, durably, and return its step.

        Args:
            anyway: although the server is connected.

        Raises:
            ConfigError: the server has commits that this store may not have, or is connected.
        """
        with self._turn:
            if self._taken_over:
                return self.step
            if self._receiver is not None and self._receiver.view()["connected"] and not anyway:
                raise ConfigError(
                    f"take-over: expected a server that has ended, found {self._server} connected; stop it first, so "
                    "that its last step is here, or give --anyway"
                )
            if not self._record.in_sync or self._receiver is None:
                raise ConfigError(
                    f"take-over: expected a standby that has every commit of {self._server}, found one that has not "
                    "been brought in sync, or was given up; go on with the server's store"
                )
            self._write(replace(self._record, follows=False, in_sync=False, generation=self._generation + 1))
            self._taken_over = True
            view = self._receiver.view()
            self._receiver_step = view["step"]
            self._receiver = None  # ends the connection and closes the store
            write_note(self._folders[0], view["note"])
        log.warning("takes over from %s step=%d generation=%d", self._server, self.step, self._generation)
        return self.step

    def status(self) -> pb.StatusReply:
        """Describe the standby."""
        with self._turn:
            view = self._receiver.view() if self._receiver is not None else {}
            connected = bool(view.get("connected"))
            return pb.StatusReply(
                step=self.step,
                workers=self._settings.workers,
                standby=pb.StandbyStatus(
                    follows=not self._taken_over,
                    other=self._server,
                    connected=connected,
                    in_sync=self._record.in_sync,
                    step=self.step,
                    generation=self._generation,
                    trouble="" if connected else self._why_alone(str(view.get("failure", ""))),
                    bytes=view.get("bytes_received", 0),
                ),
            )

    def _why_alone(self, failure: str) -> str:
        return GIVEN_UP if self._given_up else self._trouble or failure

    def close(self) -> None:
        """Stop following. The store stands at the last commit that it has."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._finish()

    @property
    def _generation(self) -> int:
        return self._record.generation

    def _finish(self) -> None:
        self._door.shut()
        self._grpc.stop(self._timeouts.close_seconds).wait()
        self._door.close()
        with self._turn:
            self._receiver = None
        self._lock.close()

    def _record_of_follower(self) -> StandbyRecord:
        """Return the record that the store has as a standby's. It is written once the server has answered."""
        record = read_standby(self._folders[0])
        if record.follows and record.other == self._server:
            return record
        if record.follows and record.in_sync:
            raise ConfigError(
                f"--standby-of {self._server}: expected the server that {self._folders[0]} follows, found that this is "
                f"{record.other}; name that one, or use an empty folder"
            )
        return StandbyRecord(follows=True, other=self._server, generation=record.generation)

    def _write(self, record: StandbyRecord) -> None:
        if record != read_standby(self._folders[0]):
            write_standby(self._folders[0], record)
        self._record = record

    def _tend(self) -> None:
        while not self._closed.wait(self._timeouts.standby_look_seconds) and not self._taken_over:
            try:
                self._look()
            except LuwuError as error:
                self._say_trouble(str(error))
                self._closed.wait(self._timeouts.standby_ask_seconds)
            except Exception:  # whatever it is, the standby must go on looking
                log.exception("following %s failed", self._server)
                self._closed.wait(self._timeouts.standby_ask_seconds)

    def _look(self) -> None:
        with self._turn:
            receiver = self._receiver
            if receiver is not None:
                self._take_notes(receiver)
        view = receiver.view() if receiver is not None else {}
        if view.get("connected"):
            self._trouble, self._heard = "", True
            return
        if self._given_up or time.monotonic() - self._asked_at < self._timeouts.standby_ask_seconds:
            return
        self._ask(receiver)
        after = self._settings.take_over_after
        alone = view.get("alone_seconds", 0.0)
        if after and self._heard and self._record.in_sync and alone >= after and not self._serves():
            log.warning("has heard nothing of %s for %.0f s, and takes over by itself", self._server, alone)
            self.take_over()

    def _take_notes(self, receiver: native.StandbyReceiver) -> None:
        view = receiver.view()
        if view["to_note"] is not None:
            in_sync, word = view["to_note"]
            self._write(replace(self._record, in_sync=in_sync))
            receiver.note(in_sync, word)
            self._given_up = not in_sync
            log.info("%s", "has every commit from now on" if in_sync else GIVEN_UP)
        if view["note"] != self._note:
            write_note(self._folders[0], view["note"])
            self._note = view["note"]

    def _ask(self, receiver: native.StandbyReceiver | None) -> None:
        """Ask the server for its store, or to connect."""
        try:
            if receiver is None:
                reply = self._call(0, b"")
                if reply.uuid:
                    self._make_store(reply)
                else:
                    self._trouble = "its server has no store yet; the first run makes it, and the standby follows then"
            else:
                token = secrets.token_bytes(DATA_TOKEN_BYTES)
                receiver.expect(token)
                self._keep_up(receiver, self._call(receiver.port, token))
            self._heard = True
        except ServerError as error:
            self._say_trouble(str(error))
        except AuthenticationError as error:
            self._refusal = error
            raise
        finally:
            self._asked_at = time.monotonic()

    def _call(self, port: int, token: bytes) -> pb.FollowReply:
        request = pb.FollowRequest(
            url=self.url, port=port, token=token, uuid=self._uuid, advertise=self._settings.advertise
        )
        asked = follow_request(self.url, self._settings.advertise, port, token)
        reply = ask_proved(self._server, self._credentials, self._timeouts, "Follow", request, asked)
        assert isinstance(reply, pb.FollowReply)
        return reply

    def _serves(self) -> bool:
        """Return True if the server answers, and is no standby itself."""
        try:
            return not ask_status(self._server, self._credentials, self._timeouts).standby.follows
        except ServerError:
            return False

    def _keep_up(self, receiver: native.StandbyReceiver, reply: pb.FollowReply) -> None:
        """Take what the server says of itself and of this standby."""
        with self._turn:
            if self._taken_over:
                return
            # A server that has gone on without this standby has all that it has, and more. One that was taken back, by
            # a snapshot or a copy, may not know that it counts on this one.
            in_sync = self._record.in_sync and (reply.in_sync or reply.step < receiver.view()["step"])
            if reply.uuid == self._uuid:  # else it is another store's server, which has no say in this one
                self._write(replace(self._record, in_sync=in_sync, generation=max(self._generation, reply.generation)))
        if reply.refusal:
            self._say_trouble(reply.refusal)
        else:
            log.info("follows %s", self._server)

    def _make_store(self, reply: pb.FollowReply) -> None:
        identity = StoreIdentity(reply.uuid, len(self._folders), Manifest.from_json(reply.manifest))
        with self._turn:
            self._write(self._record)
            self._open_receiver(identity, create=True)
            write_identity(self._folders, identity)
            write_files(self._folders[0], reply.files)

    def _open_receiver(self, identity: StoreIdentity | None, *, create: bool = False) -> None:
        if identity is None:
            return
        require_stripes(self._folders, identity.stripes)
        self._uuid = identity.uuid
        tls = self._credentials.tls.paths if self._credentials.tls is not None else None
        self._receiver = native.StandbyReceiver(
            folders=[str(folder) for folder in self._folders],
            uuid=identity.uuid,
            create=create,
            blocks=block_specs(identity.manifest),
            chunk_elements=identity.manifest.chunk_elements,
            optimizer=identity.manifest.optimizer,
            address=self._listen.host,
            port=self._settings.data_port,
            timing=native_timing(self._timeouts),
            tls=tls,
            in_sync=self._record.in_sync,
        )
        say_findings(self._receiver)

    def _say_trouble(self, text: str) -> None:
        if text != self._trouble:
            log.warning("does not follow %s: %s", self._server, text)
        self._trouble = text
