"""The server of the page: its socket, its token, and TLS."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from luwu.control.address import check_host
from luwu.core.errors import ConfigError, ServerError
from luwu.watch.pages import Pages, make_app
from luwu.watch.runs import Places

_TOKEN_BYTES = 16
_CLOSE_SECONDS = 1
_REQUEST_SECONDS = 10.0


def is_loopback(host: str) -> bool:
    """Return True for an address, or a name, that only this machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raises ServerError, as all that cannot listen, with what can be done.

    Raises ConfigError for a name that no host can have.
    """
    check_host(host)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        advice = "choose another with --port, or 0 for a free one" if taken else "check --host and --port"
        # socket.create_server adds the address to the system's words.
        number = None if isinstance(error, socket.gaierror) else error.errno
        reason = error.strerror if number is None else os.strerror(number)
        raise ServerError(f"{host}:{port}: cannot listen there: {reason}; {advice}") from None


class _Connection(H11Protocol):
    """Connection that is closed where a request does not come in time: uvicorn itself would wait for ever.

    The time runs from the begin of the connection, and from each answer, until the next request's head has come.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(_REQUEST_SECONDS, self._close_unless_asked)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close_unless_asked(self) -> None:
        # uvicorn's types leave out that there is no request at first
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class _Server(uvicorn.Server):
    """Server that limits the time of TLS handshakes, and ends the streams before it waits for its connections' end."""

    def __init__(self, config: uvicorn.Config, pages: Pages) -> None:
        super().__init__(config)
        self._pages = pages

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # uvicorn's own servers would wait a minute for each handshake
        loop = asyncio.get_running_loop()
        limit = _REQUEST_SECONDS if self.config.ssl else None
        for listening in sockets or []:
            server = await loop.create_server(
                lambda: _Connection(self.config, self.server_state, self.lifespan.state),
                sock=listening, backlog=self.config.backlog, ssl=self.config.ssl, ssl_handshake_timeout=limit,
            )  # fmt: skip
            self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._pages.end_streams()
        await super().shutdown(sockets)


def serve(places: Places, host: str, port: int, tls: tuple[Path, Path] | None, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; it ends its streams first, and raises KeyboardInterrupt then.

    Args:
        places: the places that have the runs.
        host, port: where to listen; port 0: a free one.
        tls: certificate and private key, PEM; None: without TLS, on loopback alone.
        say: called with the page's URL, once it can be opened.

    Raises:
        ConfigError: others could listen in, or the certificate cannot be read. ServerError: it cannot listen there.
    """
    if tls is None and not is_loopback(host):
        raise ConfigError(
            f"host: expected a loopback address without TLS, found {host}: the token could be read on the way; add "
            "--tls-cert and --tls-key, or use ssh -L"
        )
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    pages = Pages(places)
    certificate, key = (str(tls[0]), str(tls[1])) if tls else (None, None)
    config = uvicorn.Config(
        make_app(pages, token, secure=tls is not None), log_level="warning", lifespan="on",
        timeout_graceful_shutdown=_CLOSE_SECONDS, ssl_certfile=certificate, ssl_keyfile=key,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:
        raise ConfigError(f"tls: {certificate} with {key} cannot be used: {error}") from None
    with bind(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        say(f"{'https' if tls else 'http'}://{shown}:{listening.getsockname()[1]}/?token={token}")
        _Server(config, pages).run(sockets=[listening])
