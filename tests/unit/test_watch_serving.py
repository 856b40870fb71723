"""Connections to the page of `luwu watch`: one that asks for nothing, or for nothing more, is closed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.integration.network import make_authority, make_certificate
from uvicorn.server import ServerState

from luwu.core.errors import ServerError
from luwu.watch import serving
from luwu.watch.pages import Gate, Pages, make_app
from luwu.watch.runs import Places

LIMIT_SECONDS = 60.0


async def answer_to(request: bytes, app: Any, made: list[Any]) -> bytes:
    """Return what a server sends until it closes the connection; `made` gets its side of it."""
    config = uvicorn.Config(app, lifespan="off", log_level="error", timeout_keep_alive=600)
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


async def answer(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"found"})


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: luwu\r\n\r\nG",
        b"POST / HTTP/1.1\r\nHost: luwu\r\nContent-Length: 9\r\n\r\nx",
        b"GET / HTTP/1.1\r\nHost: luwu\r\n\r\nGET / HTTP/1.1\r\nHost: luwu\r\n\r\n",
    ],
)
def test_a_connection_that_asks_no_more_is_closed_after_its_answers(
    monkeypatch: pytest.MonkeyPatch, request_: bytes
) -> None:
    made: list[Any] = []

    async def answer_late(scope: Any, receive: Any, send: Any) -> None:
        made[0]._stop_timer()  # the time of the first request is over
        await answer(scope, receive, send)

    monkeypatch.setattr(serving, "_REQUEST_SECONDS", 0.5)
    found = asyncio.run(answer_to(request_, answer_late, made))
    assert found.count(b"found") == request_.count(b"HTTP/1.1")


def test_whoever_is_refused_is_not_heard_out() -> None:
    request = b"POST / HTTP/1.1\r\nHost: luwu\r\nContent-Length: 9\r\n\r\nx"
    found = asyncio.run(answer_to(request, Gate(answer, "token", False), []))
    assert found.startswith(b"HTTP/1.1 403 ") and b"connection: close" in found.lower()


def test_a_connection_over_tls_that_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_REQUEST_SECONDS", 0.1)
    (tmp_path / "metrics.jsonl").write_text("")
    files = make_certificate(tmp_path, "page", make_authority(tmp_path, "authority"))

    async def close_by_server() -> bytes:
        pages = Pages(Places([str(tmp_path)]))
        config = uvicorn.Config(
            make_app(pages, "token"), lifespan="on", log_level="error",
            ssl_certfile=str(files.certificate), ssl_keyfile=str(files.key),
        )  # fmt: skip
        with serving.bind("127.0.0.1", 0) as listening:
            server = serving._Server(config, pages)
            task = asyncio.create_task(server.serve([listening]))
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            found = await asyncio.wait_for(reader.read(), LIMIT_SECONDS / 2)  # asyncio's own limit is a minute
            writer.close()
            server.should_exit = True
            await task
        return found

    assert asyncio.run(close_by_server()) == b""


def test_a_port_that_is_taken_is_said_to_be_once() -> None:
    with serving.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError) as told:
            serving.bind("127.0.0.1", port)
    assert str(told.value).startswith(f"127.0.0.1:{port}: cannot listen there: Address already in use; choose another")


def test_a_page_takes_no_memory_for_numpy_and_torch() -> None:
    program = "import sys, luwu.watch.serving; sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", program], check=True)
