"""The page of `luwu watch` answers requests: whom it lets in, and whom it counts as watching."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from luwu.watch.pages import Follower, Gate, Pages, make_app
from luwu.watch.runs import LOOK_SECONDS, Places

TOKEN = "token"


def scope_of(path: str, query: str = "", **more: Any) -> dict[str, Any]:
    return {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": [(b"authorization", b"Bearer " + TOKEN.encode())], "http_version": "1.1", "scheme": "http", **more,
    }  # fmt: skip


@pytest.mark.parametrize("early", [True, False])
def test_pages_that_are_closed_are_counted_out(tmp_path: Path, early: bool) -> None:
    (tmp_path / "metrics.jsonl").write_text("")

    async def watch() -> int:
        pages = Pages(Places([str(tmp_path)]))
        app = make_app(pages, TOKEN)
        async with pages.lifespan(app):
            (follower,) = pages._followers
            closed, begun = asyncio.Event(), asyncio.Semaphore(0)

            async def open_one() -> None:
                async def receive() -> dict[str, Any]:
                    await closed.wait()
                    return {"type": "http.disconnect"}

                async def send(message: dict[str, Any]) -> None:
                    if message.get("body"):
                        begun.release()
                        await closed.wait()  # the page reads nothing

                await app(scope_of("/api/stream", "runs=0"), receive, send)

            follower.turn = int(early)  # a stream has something to send at once
            tasks = [asyncio.create_task(open_one()) for _ in range(20)]
            for _ in tasks:
                await begun.acquire()
            assert follower.pages == len(tasks)
            closed.set()
            await asyncio.gather(*tasks)
            return follower.pages

    gc.disable()  # which would find a stream in the end
    try:
        assert asyncio.run(asyncio.wait_for(watch(), 60)) == 0
    finally:
        gc.enable()


async def first_answer(gate: Gate, scope: dict[str, Any]) -> dict[str, Any]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        raise AssertionError("nothing is read")

    await gate(scope, receive, send)
    return sent[0]


async def nothing(*_: object) -> None:
    raise AssertionError("it was let in")


@pytest.mark.parametrize("path", ["/", "//elsewhere.org/a", "http://elsewhere.org/", "/a"])
def test_the_token_opens_this_page_alone(path: str) -> None:
    scope = scope_of(path, f"token={TOKEN}", headers=[])
    answer = asyncio.run(first_answer(Gate(nothing, TOKEN, False), scope))
    assert answer["status"] == 303 and dict(answer["headers"])[b"location"] == b"/"


def cookie_of(gate: Gate, token: str) -> bytes:
    """Return the cookie that a page gives to whoever opens it with its token."""
    opened = asyncio.run(first_answer(gate, scope_of("/", f"token={token}", headers=[])))
    return bytes(dict(opened["headers"])[b"set-cookie"]).partition(b";")[0]


def test_two_pages_of_a_host_keep_apart_what_a_browser_sends_to_both() -> None:
    async def shown(scope: Any, receive: Any, send: Any) -> None:
        await Response("page")(scope, receive, send)

    gates = {token: Gate(shown, token, False) for token in ("one", "two")}
    cookies = {token: cookie_of(gate, token) for token, gate in gates.items()}
    assert len({cookie.partition(b"=")[0] for cookie in cookies.values()}) == 2  # neither takes the other's place

    def status(gate: Gate, cookie: bytes) -> int:
        return int(asyncio.run(first_answer(gate, scope_of("/", headers=[(b"cookie", cookie)])))["status"])

    both = b"; ".join(cookies.values())
    assert [status(gate, both) for gate in gates.values()] == [200, 200]
    assert status(gates["one"], cookies["two"]) == status(gates["two"], cookies["one"]) == 403


class LongRun:
    """A run whose file takes some looks to read."""

    where = "long"

    def __init__(self, looks: int) -> None:
        self.left = looks

    @property
    def reading(self) -> float | None:
        return 0.5 if self.left else None

    def refresh(self) -> None:
        self.left -= 1


def test_a_long_file_is_read_without_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rested = []

    async def rest(seconds: float) -> None:
        rested.append((run.left, seconds))
        raise asyncio.CancelledError

    run = LongRun(4)
    monkeypatch.setattr("luwu.watch.pages.asyncio.sleep", rest)

    async def follow() -> int:
        follower = Follower(run, asyncio.Condition())  # type: ignore[arg-type]
        follower.count(1)
        with contextlib.suppress(asyncio.CancelledError):
            await follower.follow()
        return follower.turn

    assert asyncio.run(follow()) == 4  # each of them is told
    assert rested == [(0, LOOK_SECONDS)]


class HangingRun(LongRun):
    """A run whose server does not answer until ``go_on`` is set."""

    go_on = threading.Event()

    def refresh(self) -> None:
        self.go_on.wait(60)


def test_runs_whose_servers_do_not_answer_hold_up_no_other_and_no_end() -> None:
    async def follow() -> list[int]:
        changed = asyncio.Condition()
        followers = [Follower(HangingRun(0), changed) for _ in range(100)]  # type: ignore[arg-type]
        followers.append(Follower(LongRun(1), changed))  # type: ignore[arg-type]
        for follower in followers:
            follower.count(1)
        tasks = [asyncio.create_task(follower.follow()) for follower in followers]
        async with changed:
            await asyncio.wait_for(changed.wait_for(lambda: followers[-1].turn), 60)
        for task in tasks:
            task.cancel()
        return [follower.turn for follower in followers[:-1]]

    assert asyncio.run(follow()) == [0] * 100 and not HangingRun.go_on.is_set()
    HangingRun.go_on.set()


def test_a_websocket_is_closed() -> None:
    scope = scope_of("/", type="websocket", headers=[], scheme="ws")
    assert asyncio.run(first_answer(Gate(nothing, TOKEN, False), scope))["type"] == "websocket.close"
