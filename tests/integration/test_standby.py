"""A server and its standby: real servers in this process over loopback, and workers that train numpy models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest

import luwu
from harness.stored import contents
from luwu.control import control_pb2 as pb
from luwu.control.credentials import Credentials
from luwu.control.standby import ask_to_release, ask_to_take_over
from luwu.control.status import ask_status
from luwu.control.timeouts import Timeouts
from luwu.errors import AuthenticationError, ConfigError, ServerError
from luwu.server import standby as standby_module
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings
from luwu.server.standby import Standby, serves_itself
from luwu.server.standby_at_rest import release_at_rest, take_over_at_rest
from luwu.store.run_record import Claim, RunRecord, read_record
from luwu.store.snapshots import restore, take
from luwu.store.standby_record import StandbyRecord, read_standby, write_standby

KEY = "the key of a job in the tests"
CREDENTIALS = Credentials(KEY.encode())
QUICK = Timeouts(
    connect_seconds=20,
    look_seconds=0.05,
    drain_seconds=0.2,
    rejoin_seconds=1,
    standby_seconds=60,
    standby_ask_seconds=0.05,
    health_seconds=20,
)
LONGEST_SECONDS = 60.0


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.01)


class Site:
    """Servers and standbys over stores in a folder, by name; all are closed at the end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack

    def settings(self, name: str, **more: Any) -> ServerSettings:
        return ServerSettings(
            stores=(self.folder / name,), workers=1, **{"listen": "127.0.0.1:0", "memory": "64MiB", **more}
        )

    def serve(self, name: str = "own", timeouts: Timeouts = QUICK, **more: Any) -> NetworkServer:
        return self._stack.enter_context(NetworkServer(self.settings(name, **more), CREDENTIALS, timeouts))

    def follow(self, server: NetworkServer | str, name: str = "other", **more: Any) -> Standby:
        url = server if isinstance(server, str) else server.url
        wanted = self.settings(name, standby_of=url, **more)
        return self._stack.enter_context(Standby(wanted, CREDENTIALS, QUICK))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def connected(url: str) -> Any:
    return luwu.connect(url, rank=0, workers=1, key=KEY, timeouts=QUICK)


def train(url: str, steps: int) -> int:
    """Make steps at a server, and return the step at which the session ends."""
    with connected(url) as session:
        worker = NumpyWorker(session, small_manifest())
        assert all(worker.step() for _ in range(steps))
        return int(session.step)


def in_sync(site: Site, steps: int = 3, **more: Any) -> tuple[NetworkServer, Standby]:
    """Return a server that has made some steps, and a standby that has them."""
    server = site.serve()
    train(server.url, 1)
    standby = site.follow(server, **more)
    wait_until(lambda: ask_status(server.url, CREDENTIALS).standby.connected, "the standby to be connected")
    train(server.url, steps - 1)
    wait_until(lambda: read_standby(site.folder / "other").in_sync, "the standby to be in sync")
    wait_until(lambda: standby.step == steps, "the last commit, which may follow its answer")
    return server, standby


def test_a_standby_that_takes_over_goes_on_with_the_same_bits(site: Site) -> None:
    server, standby = in_sync(site)
    with pytest.raises(ConfigError, match="expected a server that has ended"):
        ask_to_take_over(standby.url, CREDENTIALS)
    server.close()
    wait_until(lambda: not standby.status().standby.connected, "the end of its server")
    assert (standby.step, ask_to_take_over(standby.url, CREDENTIALS)) == (3, 3)
    assert standby.taken_over
    standby.close()
    after = site.serve("other", listen=standby.listens_at)
    assert after.url == standby.url
    assert train(after.url, 2) == 5
    after.close()
    alone = site.serve("alone")
    train(alone.url, 5)
    alone.close()
    pairs = zip(contents(site.folder / "other"), contents(site.folder / "alone"), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


def test_the_run_that_has_the_store_goes_over_with_it(site: Site) -> None:
    server, _ = in_sync(site)
    with connected(server.url) as session:
        session.claim = Claim(RunRecord("the-run", "/runs/the-run"))
        NumpyWorker(session, small_manifest()).step()
    wait_until(lambda: read_record(site.folder / "other") is not None, "the run's record at the standby")
    assert read_record(site.folder / "other") == read_record(site.folder / "own")


def test_a_standby_takes_over_by_itself_when_its_server_is_gone(site: Site) -> None:
    server, standby = in_sync(site, take_over_after=0.2)
    assert not standby.taken_over, "its server answers"
    server.close()
    wait_until(lambda: standby.taken_over, "the take-over")
    assert read_standby(site.folder / "other") == StandbyRecord(other=server.url, generation=1)


def test_only_a_standby_that_has_every_commit_takes_over(site: Site) -> None:
    server = site.serve()
    standby = site.follow(server)
    with pytest.raises(ConfigError, match="has not been brought in sync"):
        ask_to_take_over(standby.url, CREDENTIALS)
    with pytest.raises(ConfigError, match="expected a standby, found a server"):
        ask_to_take_over(server.url, CREDENTIALS)
    with pytest.raises(AuthenticationError):
        ask_to_take_over(standby.url, Credentials(b"another key that is long enough"))


def test_a_server_that_was_replaced_lets_no_worker_in(site: Site) -> None:
    server, standby = in_sync(site)
    listen = server.url.removeprefix("luwu://")
    server.close()
    standby.take_over(anyway=True)
    standby.close()
    after = site.serve("other", listen=standby.listens_at)
    again = site.serve(listen=listen)
    wait_until(lambda: ask_status(again.url, CREDENTIALS).standby.replaced, "the server to hear of it")
    with pytest.raises(ServerError, match="has taken over"):
        train(again.url, 1)
    again.close()
    assert train(after.url, 1) == 4
    followed = site.follow(after, "own")
    wait_until(lambda: ask_status(after.url, CREDENTIALS).standby.connected, "the one that was replaced")
    train(after.url, 1)
    wait_until(lambda: followed.step == 5, "the one that was replaced to follow")


def test_workers_wait_for_a_standby_that_is_away(site: Site) -> None:
    server, standby = in_sync(site)
    assert {name: server.figures()["standby"][name] for name in ("connected", "required", "waits_seconds")} == {
        "connected": True, "required": True, "waits_seconds": 0.0,
    }  # fmt: skip
    standby.close()
    wait_until(lambda: not ask_status(server.url, CREDENTIALS).standby.connected, "the standby to be missed")
    assert not server.figures()["standby"]["connected"]
    with pytest.raises(ServerError, match="do not count without its standby"):
        train(server.url, 1)
    back = site.follow(server, listen=standby.listens_at)
    wait_until(lambda: ask_status(server.url, CREDENTIALS).standby.connected, "the standby to be back")
    assert train(server.url, 1) == 4
    wait_until(lambda: back.step == 4, "the commit")


def test_a_standby_that_is_given_up_does_not_take_over(site: Site) -> None:
    server, standby = in_sync(site)
    assert ask_to_release(server.url, CREDENTIALS)
    wait_until(lambda: "was given up" in standby.status().standby.trouble, "the standby to say so")
    with pytest.raises(ConfigError, match="was given up"):
        standby.take_over()
    assert train(server.url, 1) == 4
    assert standby.step == 3
    with pytest.raises(ConfigError, match="expected a server with a standby, found none"):
        ask_to_release(server.url, CREDENTIALS)


def test_a_standby_that_cannot_be_told_is_given_up_only_on_purpose(site: Site) -> None:
    server, standby = in_sync(site)
    standby.close()
    wait_until(lambda: not ask_status(server.url, CREDENTIALS).standby.connected, "the standby to be missed")
    with pytest.raises(ServerError, match="cannot be told"):
        ask_to_release(server.url, CREDENTIALS)
    assert read_standby(site.folder / "own").in_sync
    assert not ask_to_release(server.url, CREDENTIALS, anyway=True)
    assert train(server.url, 1) == 4


def test_a_standby_that_was_given_up_while_it_was_away_hears_so_when_it_comes_back(site: Site) -> None:
    server, standby = in_sync(site)
    standby.close()
    wait_until(lambda: not ask_status(server.url, CREDENTIALS).standby.connected, "the standby to be missed")
    assert not ask_to_release(server.url, CREDENTIALS, anyway=True)
    train(server.url, 2)
    back = site.follow(server, listen=standby.listens_at)
    wait_until(lambda: not read_standby(site.folder / "other").in_sync, "it to know")
    server.close()
    with pytest.raises(ConfigError, match="was given up"):
        back.take_over(anyway=True)


def test_a_server_that_answers_is_not_taken_over_from(site: Site) -> None:
    server, standby = in_sync(site)
    standby.close()
    lost = site.follow(server, listen=standby.listens_at, advertise="no-such-host.invalid", take_over_after=0.05)
    wait_until(lambda: "was not reached" in lost.status().standby.trouble, "the server to say why")
    asked = lost._asked_at
    wait_until(lambda: lost._asked_at > asked, "another question")
    assert not lost.taken_over


def test_a_standby_that_has_not_heard_its_server_since_its_start_does_not_take_over_by_itself(site: Site) -> None:
    server, standby = in_sync(site)
    server.close()
    standby.close()
    alone = site.follow(server.url, listen=standby.listens_at, take_over_after=0.05)
    for _ in range(3):
        asked = alone._asked_at
        wait_until(lambda before=asked: alone._asked_at > before, "another question")
    assert not alone.taken_over
    assert alone.take_over() == 3


def test_a_wrong_server_changes_nothing_in_a_store(site: Site) -> None:
    server = site.serve()
    train(server.url, 1)
    server.close()
    before = sorted(path.name for path in (site.folder / "own").iterdir())
    with closing(site.follow("luwu://127.0.0.1:9", "own")) as follower:
        wait_until(lambda: bool(follower.status().standby.trouble), "an answer")
    assert sorted(path.name for path in (site.folder / "own").iterdir()) == before
    with closing(site.serve()) as again:
        assert train(again.url, 1) == 2
    with pytest.raises(ConfigError, match="expected another server than this one"):
        site.follow(again.url, "own", listen=again.url.removeprefix("luwu://"))


def test_a_store_of_another_model_is_no_standby(site: Site) -> None:
    other = site.serve("other")
    train(other.url, 1)
    other.close()
    server = site.serve()
    train(server.url, 1)
    standby = site.follow(server)
    wait_until(lambda: "expected a copy of this store" in standby.status().standby.trouble, "the refusal")
    assert not read_standby(site.folder / "other").follows


@pytest.mark.parametrize(
    ("own", "other", "serves"),
    [
        (StandbyRecord(other="luwu://x:1", generation=1), None, True),
        (StandbyRecord(other="luwu://x:1", generation=1), pb.StandbyStatus(follows=True, generation=1), True),
        (StandbyRecord(other="luwu://x:1", in_sync=True, generation=1), pb.StandbyStatus(follows=True), True),
        (StandbyRecord(other="luwu://x:1", in_sync=True), pb.StandbyStatus(generation=1), False),
        (StandbyRecord(other="luwu://x:1", in_sync=True), None, True),
        (StandbyRecord(follows=True, other="luwu://x:1", in_sync=True), None, False),
        (StandbyRecord(), None, False),
    ],
)
def test_a_store_follows_its_server_unless_it_is_the_server(
    site: Site, monkeypatch: pytest.MonkeyPatch, own: StandbyRecord, other: pb.StandbyStatus | None, serves: bool
) -> None:
    def ask(url: str, credentials: object, timeouts: object) -> pb.StatusReply:
        if other is None:
            raise ServerError("it does not answer")
        return pb.StatusReply(standby=other)

    monkeypatch.setattr(standby_module, "ask_status", ask)
    (site.folder / "own").mkdir()
    write_standby(site.folder / "own", own)
    assert serves_itself(site.settings("own", standby_of="luwu://x:1"), CREDENTIALS, QUICK) == serves


def test_neither_store_is_taken_back_behind_the_other(site: Site) -> None:
    server, standby = in_sync(site)
    for one in (server, standby):
        one.close()
    for name in ("own", "other"):
        take([site.folder / name])
        with pytest.raises(ConfigError, match="standby"):
            restore([site.folder / name], 3)


def test_a_server_closes_although_a_commit_waits_for_its_standby(site: Site) -> None:
    server, standby = in_sync(site)
    with connected(server.url) as session:
        worker = NumpyWorker(session, small_manifest())
        worker.step()
        standby.close()
        with ThreadPoolExecutor(1) as pool:
            steps = pool.submit(lambda: [worker.step() for _ in range(3)])
            wait_until(lambda: server.figures()["standby"]["waits_seconds"] > 0, "a commit that waits")
            with suppress(luwu.errors.LuwuError):
                server.close()
            assert steps.exception() is not None


def test_a_second_standby_is_refused(site: Site) -> None:
    server, first = in_sync(site)
    second = site.follow(server, "third")
    wait_until(lambda: "expected no other standby" in second.status().standby.trouble, "the refusal")
    assert first.url in second.status().standby.trouble


def test_nobody_joins_a_standby(site: Site) -> None:
    server = site.serve()
    standby = site.follow(server)
    with pytest.raises(ServerError, match=f"this is the standby of {server.url}"):
        train(standby.url, 1)


def test_stores_of_the_two_are_not_trained_without_the_other(site: Site) -> None:
    server, standby = in_sync(site)
    server.close()
    standby.close()
    for name, words in (("own", "has a standby"), ("other", "is the standby of")):
        with (
            pytest.raises(ConfigError, match=words),
            luwu.open(site.folder / "run", stores=[site.folder / name]) as one,
        ):
            NumpyWorker(one, small_manifest())
    with pytest.raises(ConfigError, match="is the standby of"):
        site.serve("other")


def test_a_standby_that_does_not_run_takes_over_by_its_folder(site: Site) -> None:
    server, standby = in_sync(site)
    with pytest.raises(luwu.errors.StoreLockedError):
        take_over_at_rest(site.folder / "other")
    for one in (server, standby):
        one.close()
    with pytest.raises(ConfigError, match="no standby"):
        take_over_at_rest(site.folder / "own")
    take_over_at_rest(site.folder / "other")
    settings = site.settings("other", standby_of=server.url)
    assert serves_itself(settings, CREDENTIALS, QUICK), "it serves when it is started with the same flags"
    assert train(site.serve("other").url, 1) == 4


def test_a_standby_is_given_up_by_the_folder_of_its_server(site: Site) -> None:
    server, standby = in_sync(site)
    for one in (server, standby):
        one.close()
    with pytest.raises(ConfigError, match="expected --anyway"):
        release_at_rest(site.folder / "own", anyway=False)
    assert release_at_rest(site.folder / "own", anyway=True) == standby.url
    with pytest.raises(ConfigError, match="found one without"):
        release_at_rest(site.folder / "own", anyway=True)
    with closing(site.serve()) as again:
        assert train(again.url, 1) == 4
