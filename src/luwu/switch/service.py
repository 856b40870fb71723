"""Life of a switch: it joins its server, adds up run after run, and joins again when the server comes back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from luwu.control import control_pb2 as pb
from luwu.control.address import HostPort, local_address, parse_host_port, parse_url
from luwu.control.client import ControlClient
from luwu.control.credentials import Credentials, switch_request
from luwu.control.door import FEWEST_STRANGERS, ControlDoor, answer_health, make_grpc
from luwu.control.exposition import Exposition, Table
from luwu.control.figures import SWITCH
from luwu.control.link_counts import link_counts
from luwu.control.rpc import SERVICE
from luwu.control.timeouts import Timeouts
from luwu.control.wiring import look_up, make_wiring
from luwu.core import native
from luwu.core.errors import AuthenticationError, ConfigError, LuwuError, ServerError
from luwu.switch.settings import SwitchSettings
from luwu.switch.tracing import SwitchTracing

PORTS_TRIED = 20
"""Number of ports of the kernel's choice that are tried; one may be taken for TCP."""

WORK = ("packets_in", "packets_out", "sums_sent", "sums_sent_again", "duplicates")
"""Names of the counters of a run inside the kernel."""

log = logging.getLogger(__name__)


class SwitchFailedError(Exception):
    """Raised when the switch cannot go on because of its own failure, not its server's."""


class _CountTeller:
    """Tells the server what this switch's links have carried. A server of an older version is told once."""

    def __init__(self, control: ControlClient, timeouts: Timeouts) -> None:
        self._control = control
        self._timeouts = timeouts
        self._call: grpc.Future | None = None
        self._told_at = 0.0

    def tell(self, stats: Mapping[str, Any], now: float) -> None:
        """Tell it, every ``progress_seconds``, and wait for nothing; ``now``: time of the monotonic clock."""
        if self._call is not None:
            if not self._call.done() or self._call.exception() is not None:
                return
            if now - self._told_at < self._timeouts.progress_seconds:
                return
        self._told_at = now
        link = link_counts(stats, "udp", now)
        with suppress(LuwuError):  # the session has ended, which its thread sees
            self._call = self._control.start("Progress", pb.ProgressRequest(link=link))


class SwitchService:
    """Serves until it is closed. Threads of its own do everything.

    Raises:
        ServerError: it cannot listen there. StoreError, ConfigError: the address is not this machine's, or in use.
    """

    def __init__(self, settings: SwitchSettings, credentials: Credentials, timeouts: Timeouts) -> None:
        self._settings = settings
        self._credentials = credentials
        self._timeouts = timeouts
        self._server = parse_url(settings.server)
        listen = parse_host_port(settings.listen)
        self._local = local_address(listen.host)
        self._door = ControlDoor(timeouts)
        self._grpc = make_grpc(0, FEWEST_STRANGERS, timeouts)
        self._health = answer_health(self._grpc)
        self._set_health(False)
        self._grpc.add_insecure_port(self._door.inside)
        self._grpc.start()
        try:
            self._native = self._listen(listen)
        except BaseException:
            self._stop_answering()
            raise
        self.port = int(self._native.port)
        self._tracing = SwitchTracing(self._native)
        try:
            self._exposition = Exposition(settings.metrics, [Table(SWITCH, self._figures)])
        except BaseException:
            self._stop_answering()
            self._native.stop()
            raise
        self._closing = threading.Event()
        self._ended = threading.Event()  # the session with the server
        self._control: ControlClient | None = None
        self._refusal: LuwuError | None = None
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._live, name="luwu-switch-life", daemon=True)
        self._thread.start()

    def __enter__(self) -> SwitchService:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """HOST:PORT that it listens at."""
        return str(HostPort(self._local, self.port))

    def stats(self) -> dict[str, Any]:
        """Counts of the present run; empty between runs."""
        return dict(self._native.stats())

    def xdp(self) -> dict[str, Any]:
        """Work of the kernel: the mode of each port, the reason for none, and counts; empty without --xdp."""
        return dict(self._native.xdp())

    @property
    def metrics_port(self) -> int:
        """Port that answers Prometheus; 0: nothing does."""
        return self._exposition.port

    def _figures(self) -> dict[str, Any]:
        return self.stats() | {"xdp": self.xdp()}

    def wait(self, seconds: float) -> bool:
        """Wait; True if the server has refused the switch for good, or it has failed; then `close` raises the error."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Leave the server and stop. Raises the error if the server refused it for good or the switch failed."""
        self._closing.set()
        self._ended.set()
        if (control := self._control) is not None:
            control.give_up()
        self._thread.join()
        self._exposition.close()
        self._stop_answering()
        self._native.stop()
        if self._refusal is not None:
            raise self._refusal

    def _stop_answering(self) -> None:
        self._health.enter_graceful_shutdown()
        self._door.shut()
        self._grpc.stop(0).wait()
        self._door.close()

    def _listen(self, listen: HostPort) -> native.UdpSwitch:
        """Open one port for both protocols; a port that the kernel chooses must be free for both."""
        interfaces = [name.strip() for name in self._settings.xdp.split(",") if name.strip()]
        for left in reversed(range(PORTS_TRIED if listen.port == 0 else 1)):
            switch = native.UdpSwitch(self._local, listen.port, interfaces)
            try:
                self._door.open(HostPort(listen.host, switch.port), FEWEST_STRANGERS)
                return switch
            except ServerError:
                if left == 0:
                    raise
        raise AssertionError("the last try returns or raises")

    def _set_health(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            self._health.set(name, status.SERVING if serving else status.NOT_SERVING)

    def _live(self) -> None:
        while not self._closing.is_set():
            try:
                self._serve_once()
            except (AuthenticationError, ConfigError) as error:  # nothing that time heals
                log.error("refused %s: %s", type(error).__name__, error)
                self._refusal = error
                return
            except SwitchFailedError as error:
                log.error("failed error=%s", error)
                self._refusal = ServerError(str(error))
                return
            except LuwuError as error:
                if not self._closing.is_set():  # otherwise `close` has ended the session or the search
                    met = self._control is not None and self._control.met
                    log.warning("%s server=%s why=%s", "lost" if met else "no", self._settings.server, error)
            except Exception as error:  # if this thread ended unnoticed, the process would serve nothing
                log.exception("failed")
                self._refusal = ServerError(f"the switch failed: {error}; start it again")
                return
            self._closing.wait(self._timeouts.retry_seconds)

    def _serve_once(self) -> None:
        """Serve one session with the server, until either side ends it."""
        self._ended.clear()
        reach = look_up(self._server.host, self._server.port)
        own = reach.own if self._local in ("0.0.0.0", "::") else self._local
        request = pb.JoinSwitchRequest(
            name=self._settings.name,
            address=own,
            port=self.port,
            fan_in=self._settings.fan_in,
            payload_bytes=reach.payload_bytes,
            parent=self._settings.parent,
        )
        control = ControlClient(
            self._settings.server, self._credentials, self._timeouts, self._take, lambda error: self._ended.set()
        )
        self._control = control
        if self._closing.is_set():
            control.give_up()

        def join(stub: Any, nonce: bytes, proof: bytes, seconds: float) -> pb.JoinReply:
            request.nonce, request.proof = nonce, proof
            return stub.JoinSwitch(request, timeout=seconds)

        try:
            control.join(switch_request(request), join)
            log.info("joined server=%s as=%s at=%s port=%d", control.url, self._settings.name, own, self.port)
            self._set_health(True)
            teller = _CountTeller(control, self._timeouts)
            while not self._ended.wait(self._timeouts.look_seconds):
                self._failure = self._failure or self._native.failure()
                if self._failure:
                    raise SwitchFailedError(f"the switch cannot go on: {self._failure}; start it again")
                teller.tell(self.stats(), time.monotonic())
                self._look_at_trace(control)
            if not self._closing.is_set():
                raise control.error() or ServerError("the session ended")
        finally:
            self._set_health(False)
            control.close(leave=self._closing.is_set() or bool(self._failure), failure=self._failure or "")
            self._log_work()
            self._native.stop()

    def _look_at_trace(self, control: ControlClient) -> None:
        try:
            self._tracing.look(lambda request: control.call("TraceRecords", request))
        except LuwuError as error:  # where the session has ended, that is noticed without this
            log.warning("no trace server=%s why=%s", control.url, error)

    def _take(self, event: pb.Event) -> None:
        if event.HasField("trace"):
            self._tracing.take(event.trace)
        if not event.HasField("topology"):
            return
        place = event.topology
        network = place.network
        parent = look_up(network.parent_address or self._server.host, network.parent_port).server
        children = [(neighbour.address, neighbour.port) for neighbour in place.below]
        wiring = make_wiring(network, place.job, place.workers, place.incarnation)
        self._log_work()
        try:
            self._native.start(wiring, (parent, network.parent_port), place.position, children)
        except LuwuError as error:
            self._failure = f"cannot serve job {place.job:x}: {error}"  # the session's thread reads it
            return
        if why_not := self.xdp().get("why_not"):
            log.warning("serves in user space job=%x why=%s", place.job, why_not)
        names = ", ".join(neighbour.name for neighbour in place.below)
        log.info(
            "serves job=%x parent=%s:%d children=%s payload=%d state=%d",
            place.job, parent, network.parent_port, names, network.payload_bytes, self.stats()["state_bytes"],
        )  # fmt: skip

    def _log_work(self) -> None:
        """Log the work of the kernel for the run that ends, if it did any."""
        work = self.xdp()
        if work and not work["why_not"]:
            log.info("in the kernel %s", " ".join(f"{name}={work[name]}" for name in WORK))
