"""A URL that is told of alerts: which ones are taken, and the request. No sentence has the URL: it may be a secret."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
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
        limit_seconds: the longest time.

    Raises:
        ConnectionError: there was no answer, or one that is not a success.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "luwu"}
    request = urllib.request.Request(url, json.dumps(words).encode(), headers)
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=limit_seconds):
            pass
    except Exception as error:
        raise ConnectionError(_why(error)) from None


def _why(error: Exception) -> str:
    """Return a failure in words that are not the server's, nor those of an error that may quote the URL."""
    if isinstance(error, HTTPError):
        if error.code in _REDIRECTS:
            return f"it answered {error.code}; give the address that it redirects to"
        names = {status.value: f" ({status.phrase})" for status in HTTPStatus}
        return f"it answered {error.code}{names.get(error.code, '')}"
    reason = error.reason if isinstance(error, URLError) else error
    return type(reason).__name__ if isinstance(reason, Exception) else type(error).__name__
