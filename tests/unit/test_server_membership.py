"""Members of a run: the end of its native server, whose last reference keeps the store locked."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from luwu.control.timeouts import PATIENCE_SECONDS
from luwu.core.errors import (
    ConfigError,
    LuwuError,
    ManifestMismatchError,
    ServerError,
    StoreSpaceError,
    WorkerLostError,
)
from luwu.core.manifest import BlockManifest, Manifest
from luwu.core.room import RoomWait, RoomWatch
from luwu.server.lent import end_core
from luwu.server.membership import Membership, look_for_missing

MANIFEST = Manifest("float32", 1024, (BlockManifest("<root>", True, (), 32),))


class SlowCore:
    """A native server whose counts take until they are let through."""

    initialised = True

    def __init__(self, asked: threading.Event, through: threading.Event) -> None:
        self._asked = asked
        self._through = through

    def stats(self) -> dict[str, int]:
        first = not self._asked.is_set()
        self._asked.set()
        assert not first or self._through.wait(30)
        return {"step": 3}

    def finish(self, at_most_seconds: float) -> bool:
        return True

    def failure(self) -> None:
        return None

    def close(self) -> None:
        pass


def test_a_server_has_ended_when_close_returns():
    asked, through = threading.Event(), threading.Event()
    cores: list[weakref.ref[SlowCore]] = []

    def open_core(manifest: Manifest) -> SlowCore:
        core = SlowCore(asked, through)
        cores.append(weakref.ref(core))
        return core

    members = Membership(1, open_core)
    members.attach(0, MANIFEST, members.join(0, 1))
    steps: list[int] = []
    watcher = threading.Thread(target=lambda: steps.append(members.step))
    watcher.start()
    assert asked.wait(30)
    ended = threading.Event()
    closer = threading.Thread(target=lambda: (members.close(), ended.set()))
    closer.start()
    assert not ended.wait(0.05)  # it waits for the answer
    through.set()
    assert ended.wait(30)
    assert cores[0]() is None
    watcher.join()
    closer.join()
    assert steps == [3] and members.step == 3


class KeepingCore:
    """A native server of two workers that lets others take the places of lost ones, when it is let through."""

    initialised = True

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.losing, self.lost = threading.Event(), threading.Event()
        self.waiting, self.free = threading.Event(), threading.Event()

    def lose_worker(self, rank: int) -> None:
        self.losing.set()
        assert self.lost.wait(30)

    def wait_for_place(self, rank: int, at_most_seconds: float) -> bool:
        self.waiting.set()
        return self.free.wait(at_most_seconds)

    def fail_run(self, why: str) -> None:
        self.failed.append(why)

    def stats(self) -> dict[str, int]:
        return {"step": 3}

    def failure(self) -> None:
        return None


@pytest.fixture
def keeping() -> tuple[Membership[KeepingCore], KeepingCore, list[str]]:
    """Two workers that have attached, and what the run has said."""
    core, said = KeepingCore(), list[str]()
    members = Membership(2, lambda manifest: core, worker_return_seconds=60.0, say=said.append)
    for rank in range(2):
        members.attach(rank, MANIFEST, members.join(rank, 2))
    return members, core, said


def in_a_thread(act: Callable[..., object], *words: object) -> tuple[threading.Thread, list[Exception]]:
    errors: list[Exception] = []

    def run() -> None:
        try:
            act(*words)
        except WorkerLostError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_a_place_is_free_once_the_core_has_let_go_of_the_lost_worker(keeping) -> None:
    members, core, said = keeping
    losing, _ = in_a_thread(members.lose, 1)
    assert core.losing.wait(30)
    with pytest.raises(ConfigError, match="worker 1 has joined already"):
        members.join(1, 2)
    assert 1 not in members.vacancies
    core.lost.set()
    losing.join()
    assert 1 in members.vacancies and members.missing == [1] and members.joined == {0}
    core.free.set()
    assert not members.attach(1, MANIFEST, members.join(1, 2))
    assert 1 not in members.vacancies and members.missing == []
    look_for_missing(members)  # too late for news of the wait
    assert said == ["another worker 1 has joined; the run goes on at step 3"]
    assert members.error() is None and members.lost == []


def test_a_run_waits_for_no_worker_that_nobody_starts() -> None:
    core, said = KeepingCore(), list[str]()
    members = Membership(
        2, lambda manifest: core, worker_return_seconds=60.0, say=said.append, another_comes=lambda: False
    )
    for rank in range(2):
        members.attach(rank, MANIFEST, members.join(rank, 2))
    members.lose(1)
    assert isinstance(members.error(), WorkerLostError) and core.failed == [str(members.error())]
    assert 1 not in members.vacancies and not said


def test_a_wait_for_a_worker_is_told_once_when_it_is_not_a_short_one(keeping, monkeypatch) -> None:
    members, core, said = keeping
    core.lost.set()
    members.lose(1)
    look_for_missing(members)
    assert said == []
    now = time.monotonic()
    later = SimpleNamespace(monotonic=lambda: now + PATIENCE_SECONDS)
    monkeypatch.setattr("luwu.server.vacancies.time", later)
    look_for_missing(members)
    look_for_missing(members)
    assert len(said) == 1
    assert said[0].startswith("worker 1 ended without leaving; the run waits for another worker 1 until ")


def test_a_worker_that_is_lost_while_it_waits_for_its_place_leaves_it_free(keeping) -> None:
    members, core, _ = keeping
    core.lost.set()
    members.lose(1)
    attaching, errors = in_a_thread(members.attach, 1, MANIFEST, members.join(1, 2))
    assert core.waiting.wait(30)
    members.lose(1)
    core.free.set()
    attaching.join()
    assert "was lost while it waited for an answer" in str(errors[0])
    assert 1 in members.vacancies and members.joined == {0}
    members.attach(1, MANIFEST, members.join(1, 2))
    assert members.joined == {0, 1} and members.error() is None


def test_a_call_of_a_lost_worker_does_not_take_the_place_of_the_next(keeping) -> None:
    members, core, said = keeping
    core.lost.set()
    core.free.set()
    members.lose(1)
    lost = members.join(1, 2)
    members.lose(1)
    following = members.join(1, 2)
    assert members.holds(1, following) and not members.holds(1, lost)
    with pytest.raises(WorkerLostError, match="worker 1 was lost while it waited for an answer"):
        members.attach(1, MANIFEST, lost)
    assert 1 in members.vacancies and members.missing == [1] and said == []
    assert not members.attach(1, MANIFEST, following)
    assert members.joined == {0, 1} and members.missing == []


def test_a_trace_learns_that_a_worker_is_lost_before_another_one_joins(keeping, monkeypatch) -> None:
    members, core, _ = keeping
    core.lost.set()
    lost: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(members.tracing, "lose", lambda rank: lost.append((rank, members.joined)))
    members.lose(1)
    assert lost == [(1, {0, 1})] and members.joined == {0}


def test_a_worker_that_has_another_model_leaves_the_run_untouched(keeping) -> None:
    members, core, _ = keeping
    core.lost.set()
    core.free.set()
    members.lose(1)
    with pytest.raises(ManifestMismatchError):
        members.attach(1, replace(MANIFEST, dtype="bfloat16"), members.join(1, 2))
    members.lose(1)
    assert 1 in members.vacancies and members.error() is None
    members.attach(1, MANIFEST, members.join(1, 2))
    assert members.joined == {0, 1}


def test_a_run_waits_for_the_return_of_a_worker_so_long_and_no_longer(monkeypatch) -> None:
    core, now = KeepingCore(), [100.0]
    core.lost.set()
    members = Membership(1, lambda manifest: core, worker_return_seconds=60.0, say=lambda text: None)
    members.attach(0, MANIFEST, members.join(0, 1))
    monkeypatch.setattr("luwu.server.vacancies.time", SimpleNamespace(monotonic=lambda: now[0]))
    failed: list[LuwuError] = []
    monkeypatch.setattr(members, "fail", failed.append)
    members.lose(0)
    now[0] = 159.0
    look_for_missing(members)
    assert failed == []
    now[0] = 161.0
    look_for_missing(members)
    (error,) = failed
    assert str(error) == (
        "worker 0 was lost, and no other joined at its place within 60 s; the run stands at step 3: run again to "
        "resume from there"
    )


def fail() -> None:
    raise StoreSpaceError("no room")


class FailingCore:
    """A native server that fails; as in native code, no frame of the error refers to it."""

    initialised = True
    commit = staticmethod(fail)

    def stats(self) -> dict[str, int]:
        return {}

    def finish(self, at_most_seconds: float) -> bool:
        return True

    def close(self) -> None:
        pass


def test_an_error_that_somebody_keeps_does_not_keep_the_server():
    cores: list[weakref.ref[FailingCore]] = []

    def open_core(manifest: Manifest) -> FailingCore:
        core = FailingCore()
        cores.append(weakref.ref(core))
        return core

    members = Membership(1, open_core)
    members.attach(0, MANIFEST, members.join(0, 1))
    with pytest.raises(StoreSpaceError) as kept, members.core() as lent:
        lent.commit()
    members.close()
    assert kept.value.__traceback__ is not None  # its frames refer to what was lent
    assert cores[0]() is None
    with pytest.raises(ServerError, match="the server has closed the store"):
        lent.commit()


class BusyCore:
    """A native server that has to put steps on the disk: ``looks`` calls of `finish` are needed."""

    def __init__(self, looks: int, interrupted: bool = False) -> None:
        self.looks = looks
        self.interrupted = interrupted
        self.closed = False

    def stats(self) -> dict[str, int]:
        return {"unwritten": self.looks}

    def finish(self, at_most_seconds: float) -> bool:
        if self.interrupted:
            raise KeyboardInterrupt
        self.looks -= 1
        return self.looks == 0

    def close(self) -> None:
        self.closed = True
        if self.looks:
            raise StoreSpaceError("a step is lost")


def test_a_server_ends_when_its_steps_are_on_the_disk():
    core, seen = BusyCore(3), []
    end_core(core, lambda stats: seen.append(stats["unwritten"]) is None)
    assert core.closed
    assert seen == [2, 1, 0]


def test_a_server_that_is_given_up_says_that_a_step_is_lost():
    core = BusyCore(3)
    with pytest.raises(StoreSpaceError, match="a step is lost"):
        end_core(core, lambda stats: stats["unwritten"] > 1)
    assert core.closed and core.looks == 1


def test_ctrl_c_ends_a_server_that_waits_and_what_it_loses_is_logged(caplog):
    core = BusyCore(3, interrupted=True)
    with pytest.raises(KeyboardInterrupt):
        end_core(core, lambda stats: True)
    assert core.closed and "a step is lost" in caplog.text


WAITS = {"waits_for_room": ("/disk", 5, 1e9)}


def test_a_pause_is_told_again_when_it_can_be_given_up():
    said: list[RoomWait | None] = []
    asked = [False]
    watch = RoomWatch(said.append, lambda: asked[0])
    watch.look(WAITS)
    watch.look(WAITS)
    assert [str(wait).endswith("once more ends without them") for wait in said] == [False]
    assert watch.goes_on(WAITS) and watch.goes_on(WAITS)
    assert [str(wait).endswith("once more ends without them") for wait in said] == [False, True]
    asked[0] = True
    assert not watch.goes_on(WAITS)
    assert watch.goes_on({"waits_for_room": None}) and said[-1] is None


@pytest.mark.parametrize("error", [OSError("no room for a line"), SystemExit(1)])
def test_who_cannot_be_told_of_a_pause_loses_nothing(error: BaseException):
    def say(wait: RoomWait | None) -> None:
        raise error

    core, watch = BusyCore(3), RoomWatch(say)
    end_core(core, lambda stats: watch.goes_on(stats | WAITS))
    assert core.closed and core.looks == 0
    with pytest.raises(KeyboardInterrupt):
        RoomWatch(lambda wait: interrupt()).goes_on(WAITS)


def interrupt() -> None:
    raise KeyboardInterrupt
