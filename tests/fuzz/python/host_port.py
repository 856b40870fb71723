"""Addresses as text, from the command line and from peers: refused, or read again as they are shown."""

from __future__ import annotations

from tests.fuzz.python.support import Input, allowing

from luwu.control.address import parse_host_port, parse_url, parse_urls
from luwu.errors import ConfigError


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    text = given.rest().decode("utf-8", "surrogateescape")
    found = allowing(ConfigError, lambda: parse_host_port(text, lowest_port=mode % 2))
    if found is not None:
        assert parse_host_port(str(found)) == found, "an address is read as it is shown"
        assert found.port >= mode % 2
    url = allowing(ConfigError, lambda: parse_url(text if mode & 2 else f"luwu://{text}"))
    if url is not None:
        assert parse_url(url.url) == url and url.port > 0, "a URL is read as it is shown"
    urls = allowing(ConfigError, lambda: parse_urls(text if mode & 2 else f"luwu://{text}"))
    if urls is not None:
        assert len(set(urls)) == len(urls), "no server is named twice"
