"""Connections to the page of `luwu watch`: one that asks for nothing is closed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from luwu.watch import serving

LIMIT_SECONDS = 60.0


async def answer_to(request: bytes, app: Any, made: list[Any]) -> bytes:
    """Return what a server sends until it closes the connection; `made` gets its side of it."""
    config = uvicorn.Config(app, lifespan="off", log_level="error")
    config.load()

    def connection() -> Any:
        made.append(serving._Connection(config, ServerState(), {}))
        return made[-1]

    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(request)
        found = await asyncio.wait_for(reader.read(), LIMIT_SECONDS)
        writer.close()
    return found


@pytest.mark.parametrize("request_", [b"", b"GET / HTTP/1.1\r\nHost: luwu\r\n"])
def test_a_connection_without_a_whole_request_is_closed(monkeypatch: pytest.MonkeyPatch, request_: bytes) -> None:
    async def nothing(_scope: Any, _receive: Any, _send: Any) -> None:
        raise AssertionError("it was asked")

    monkeypatch.setattr(serving, "_REQUEST_SECONDS", 0.01)
    assert asyncio.run(answer_to(request_, nothing, [])) == b""


def test_an_answer_may_take_longer_than_a_request() -> None:
    made: list[Any] = []

    async def slow(_scope: Any, _receive: Any, send: Any) -> None:
        made[0]._close_unless_asked()  # the time of a request is over
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b"found"})

    assert b"found" in asyncio.run(answer_to(b"GET / HTTP/1.1\r\nHost: luwu\r\n\r\n", slow, made))


def test_a_page_takes_no_memory_for_numpy_and_torch() -> None:
    program = "import sys, luwu.watch.serving; sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", program], check=True)
