"""A URL that is told of alerts: which ones are taken, and the request. No sentence has the URL: it may be a secret."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from luwu.core.errors import ConfigError

_REDIRECTS = (301, 302, 303, 307, 308)

_EXPECTED = "expected a URL such as https://HOST:PORT/PATH"


def is_url(target: str) -> bool:
    """Return True for a URL, False for a command."""
    return target.lower().startswith(("http://", "https://"))


def check_url(url: str) -> None:
    """Raise ConfigError for a URL that cannot be posted to, without quoting it."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(
            f"{_EXPECTED}, found one with a space, a control character or a letter beyond ASCII; "
            "write it with %XX, and a host with its punycode"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text has the host or the port
        raise ConfigError(f"{_EXPECTED}, found one whose host or port is none; correct it") from None
    if "@" in parts.netloc:
        raise ConfigError(
            f"{_EXPECTED}, found one with a user or a password; put the secret into its path or query, "
            "or give a command that sends it, such as curl"
        )
    if not host or port == 0:
        raise ConfigError(f"{_EXPECTED}, found one without a host, or with port 0; correct it")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirect as a failure: following it would make a GET of the POST, and lose the alert."""

    def redirect_request(self, *_: Any) -> None:
        """Return no further request."""


def post(url: str, words: Mapping[str, Any], limit_seconds: float) -> None:
    """Post an alert as JSON.

    Args:
        url: as `check_url` takes it.
        words: the alert.
        limit_seconds: the longest time, from the look-up of the host to the answer.

    Raises:
        ConnectionError: there was no answer, or one that is not a success.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "luwu"}
    sending = _Sending(urllib.request.Request(url, json.dumps(words).encode(), headers), limit_seconds)
    sending.start()
    sending.join(limit_seconds)
    if sending.is_alive():
        sending.abandon()
        raise ConnectionError(f"it had not answered within {limit_seconds:g} s")
    if sending.failure is not None:
        raise ConnectionError(_why(sending.failure)) from None


class _Sending(threading.Thread):
    """Makes a request. The time limit of a socket is of one read: a server may send a byte now and then for ever."""

    def __init__(self, request: urllib.request.Request, limit_seconds: float) -> None:
        super().__init__(name="luwu-webhook", daemon=True)
        self.failure: Exception | None = None
        self._request, self._limit_seconds = request, limit_seconds
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        """Make it, and note its failure."""
        opener = urllib.request.build_opener(_NoRedirects, _Connections(self._connect))
        try:
            opener.open(self._request, timeout=self._limit_seconds).close()
        except Exception as error:
            self.failure = error

    def abandon(self) -> None:
        """End what it reads or writes, and so this thread; a connection that is being made has its own limit."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _connect(self, kind: type[http.client.HTTPConnection], host: str, **options: Any) -> http.client.HTTPConnection:
        self._connection = kind(host, **options)
        return self._connection


_Connect = Callable[..., http.client.HTTPConnection]


class _Connections(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Makes connections, with and without TLS, with a function of somebody who may end them."""

    def __init__(self, connect: _Connect) -> None:
        super().__init__()
        self._connect = connect

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Make a request."""
        return self.do_open(partial(self._connect, http.client.HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Make a request over TLS."""
        return self.do_open(partial(self._connect, http.client.HTTPSConnection), request)


def _why(error: Exception) -> str:
    """Return a failure in words that are not the server's, nor those of an error that may quote the URL."""
    if isinstance(error, HTTPError):
        if error.code in _REDIRECTS:
            return f"it answered {error.code}; give the address that it redirects to"
        names = {status.value: f" ({status.phrase})" for status in HTTPStatus}
        return f"it answered {error.code}{names.get(error.code, '')}"
    reason = error.reason if isinstance(error, URLError) else error
    return type(reason).__name__ if isinstance(reason, Exception) else type(error).__name__
