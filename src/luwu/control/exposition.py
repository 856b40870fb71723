"""Answers Prometheus: figures of this process over HTTP, read when they are asked for."""

from __future__ import annotations

import io
import logging
import re
import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from pydantic import AfterValidator

from luwu.control.address import HostPort, parse_host_port
from luwu.control.figures import Figure, Source
from luwu.control.timeouts import TIMEOUTS
from luwu.core.errors import ConfigError, ServerError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LOOPBACK = "127.0.0.1"

MOST_REQUESTS = 8
"""Requests that are answered at a time."""

log = logging.getLogger(__name__)


def parse_metrics(text: str) -> HostPort:
    """Return the place of a setting ``metrics``: HOST:PORT, or :PORT on this machine alone; raises ConfigError."""
    place = f"{LOOPBACK}{text}" if text.startswith(":") else text
    if not re.search(r":\d+$", place):
        raise ConfigError(f"expected HOST:PORT, or :PORT for this machine alone, found {text!r}")
    return parse_host_port(place)


def _checked(text: str) -> str:
    if text:
        parse_metrics(text)
    return text


MetricsPlace = Annotated[str, AfterValidator(_checked)]
"""Text that `parse_metrics` reads, or an empty one: nothing answers."""


class Table(NamedTuple):
    """Figures of a process, and the function that returns its stats."""

    figures: Sequence[Figure]
    source: Source


class Labelled(NamedTuple):
    """A figure of each of several things, such as workers: ``source`` returns its values by the label's value."""

    figure: Figure
    label: str
    source: Source


class _UntilDeadline(io.RawIOBase):
    """Reads from a connection until a time is over, however often something comes; then raises TimeoutError."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(WSGIRequestHandler):
    timeout = TIMEOUTS.metrics_seconds

    def setup(self) -> None:
        """Prepare a request, all of which must come within the timeout: the socket's own is of each piece."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_UntilDeadline(self.connection, self.timeout))

    def handle(self) -> None:
        """Answer the request, if it comes in time."""
        with suppress(TimeoutError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: somebody asks every few seconds."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """Answers some requests at a time; a connection that is one too many is closed."""

    daemon_threads = True

    def __init__(self, place: HostPort, family: int) -> None:
        self.address_family = family
        self._free = threading.BoundedSemaphore(MOST_REQUESTS)
        super().__init__((place.host, place.port), _Handler)

    @classmethod
    def at(cls, place: HostPort) -> _Server:
        """Listen at a place; raises OSError."""
        return cls(place, socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0])

    def server_bind(self) -> None:
        """Listen, without asking anybody for the name of this machine."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread of its own, if there is one left."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request; called in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class Exposition:
    """Answers ``GET /metrics`` until it is closed. A thread of its own does it.

    Args:
        place: HOST:PORT, or :PORT on this machine alone; port 0: the kernel chooses one. Empty: nothing answers.
        tables: figures by table; a figure whose stats have no value is left out.
        labelled: figures of several things.

    Attributes:
        port: where it listens; 0: nothing answers.
        url: what Prometheus asks; empty: nothing answers.

    Raises:
        ConfigError: the package prometheus-client is not installed. ServerError: it cannot listen there.
    """

    def __init__(self, place: str, tables: Sequence[Table], labelled: Sequence[Labelled] = ()) -> None:
        self.port, self.url = 0, ""
        self._tables = tables
        self._labelled = labelled
        if not place:
            return
        where = parse_metrics(place)
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app
        except ImportError as error:
            raise ConfigError(
                "metrics: needs the package prometheus-client, found none; pip install prometheus-client"
            ) from error
        registry = CollectorRegistry(support_collectors_without_names=True)
        registry.register(self)
        try:
            self._server = _Server.at(where)
        except OSError as error:
            raise ServerError(f"metrics: cannot listen at {where}: {error.strerror}; choose another port") from None
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="luwu-metrics", daemon=True)
        self._thread.start()
        self.port = int(self._server.server_port)
        self.url = f"http://{HostPort(where.host, self.port)}/metrics"
        log.info("answers Prometheus url=%s", self.url)

    def __enter__(self) -> Exposition:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def collect(self) -> Iterator[Metric]:
        """Yield the figures as they are now; Prometheus's client calls it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def family(figure: Figure, labels: Sequence[str] = ()) -> CounterMetricFamily | GaugeMetricFamily:
            kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
            return kind(figure.name, figure.help, labels=labels)

        for figures, source in self._tables:
            stats = source()
            for figure in figures:
                if (value := figure.read(stats)) is not None:
                    found = family(figure)
                    found.add_metric([], value)
                    yield found
        for figure, label, source in self._labelled:
            found = family(figure, [label])
            for name, value in sorted(source().items()):
                found.add_metric([str(name)], float(value))
            yield found

    def close(self) -> None:
        """Stop answering."""
        if not self.port:
            return
        self.port = 0
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
