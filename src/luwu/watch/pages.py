"""The page of `luwu watch`: its files, and one stream of what changes, for whoever has the token."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from luwu.watch.looks import in_thread
from luwu.watch.runs import LOOK_SECONDS, Cursor, Places, WatchedRun

log = logging.getLogger(__name__)

STATIC = Path(__file__).with_name("static")
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Gate:
    """Lets in whoever has the token: in the query of the first request, then in a cookie, or as a bearer's.

    Everybody else gets an empty answer, which tells nothing.
    """

    def __init__(self, app: ASGIApp, token: str, secure: bool) -> None:
        self._app = app
        self._token = token
        self._secure = secure
        # A browser has one cookie of a name for all ports of a host, and several pages may be behind these.
        self._cookie = f"luwu-watch-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "websocket":  # the page has none
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        bearer = connection.headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(connection.cookies.get(self._cookie, "")) or self._is_token(bearer):
            await self._app(scope, receive, _with_headers(send))
        elif self._is_token(connection.query_params.get("token", "")):
            response: Response = RedirectResponse("/", status_code=303)  # a path may name another host
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", secure=self._secure)
            await response(scope, receive, send)
        else:
            await Response(status_code=403, headers={"connection": "close"})(scope, receive, send)  # whatever follows

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


class Follower:
    """Looks at a run while a page follows it.

    Attributes:
        pages: number of pages that follow it.
        turn: number of looks.
    """

    def __init__(self, run: WatchedRun, changed: asyncio.Condition) -> None:
        self.run = run
        self.pages = 0
        self.turn = 0
        self._changed = changed
        self._watched = asyncio.Event()

    def count(self, pages: int) -> None:
        """Note that so many pages more follow it."""
        self.pages += pages
        if self.pages:
            self._watched.set()
        else:
            self._watched.clear()

    async def follow(self) -> None:
        """Look at the run every second while somebody watches, and without a rest while a long file is read."""
        while True:
            await self._watched.wait()
            try:
                await in_thread(self.run.refresh)
            except Exception:
                log.exception("could not look at %s", self.run.where)
            async with self._changed:
                self.turn += 1
                self._changed.notify_all()
            if self.run.reading is None:
                await asyncio.sleep(LOOK_SECONDS)


class Pages:
    """Answers of the page's requests. All of it runs in one event loop.

    Args:
        places: the places that have the runs.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._followers: list[Follower] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Condition()  # somebody has looked at a run, or all ends
        self._ended = False

    async def runs(self, _: Request) -> Response:
        """List the runs, also those that have come since the last time."""
        await self._look_for_runs()
        return JSONResponse([
            {"id": number, "name": follower.run.name, "live": await in_thread(follower.run.seems_live)}
            for number, follower in enumerate(self._followers)
        ])  # fmt: skip

    async def stream(self, request: Request) -> Response:
        """Send what is new about some runs, now and whenever somebody has looked at one of them."""
        wanted = set(request.query_params.get("runs", "").split(","))
        followers = {number: follower for number, follower in enumerate(self._followers) if str(number) in wanted}
        if not followers:
            return Response(status_code=404)
        return _Events(self._events(followers))

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Context manager: the runs are followed."""
        await self._look_for_runs()
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def end_streams(self) -> None:
        """Have all streams end."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def _look_for_runs(self) -> None:
        runs = await in_thread(self._places.runs)
        for run in runs[len(self._followers) :]:  # another request may have added some meanwhile
            follower = Follower(run, self._changed)
            self._followers.append(follower)
            self._tasks.append(asyncio.create_task(follower.follow()))

    async def _events(self, followers: Mapping[int, Follower]) -> AsyncGenerator[bytes, None]:
        cursors = dict.fromkeys(followers, Cursor())
        turns = dict.fromkeys(followers, 0)
        for follower in followers.values():
            follower.count(1)
        try:
            while not self._ended:
                for number, follower in followers.items():
                    if follower.turn != turns[number]:
                        turns[number] = follower.turn
                        update = partial(follower.run.update, cursors[number])
                        record, cursors[number] = await in_thread(update)
                        yield f"data: {json_text({'run': number, **record})}\n\n".encode()
                async with self._changed:
                    await self._changed.wait_for(
                        lambda: self._ended or any(each.turn != turns[number] for number, each in followers.items())
                    )
        finally:
            for follower in followers.values():
                follower.count(-1)  # without a wait, in which a stream that is cancelled would be cancelled again


class _Events(StreamingResponse):
    """Stream whose events end with it, not when their memory is collected: until then a run would be looked at."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events = events

    async def stream_response(self, send: Send) -> None:
        async with contextlib.aclosing(self._events):
            await super().stream_response(send)


def json_text(record: Mapping[str, Any]) -> str:
    """Return a record as JSON, with null in the place of NaN and infinity, which a browser refuses."""
    try:
        return json.dumps(record, allow_nan=False)
    except ValueError:  # seldom, as of a damaged row
        return json.dumps(_finite(record), allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_HEADERS)
        await send(message)

    return send_with_headers


def make_app(pages: Pages, token: str, *, secure: bool = False) -> Starlette:
    """Return the application that serves the page.

    Args:
        pages: the page's answers.
        token: what a request must bring.
        secure: the page is served over TLS, so that the cookie travels over nothing else.
    """
    return Starlette(
        routes=[
            Route("/api/runs", pages.runs),
            Route("/api/stream", pages.stream),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        middleware=[Middleware(Gate, token=token, secure=secure)],
        lifespan=pages.lifespan,
    )
