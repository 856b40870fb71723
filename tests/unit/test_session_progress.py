"""A worker tells its server what it does: when that changes, and from time to time when it does not."""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
import weakref
from pathlib import Path
from types import FrameType

import pytest

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import Timeouts
from luwu.core.errors import ServerError
from luwu.core.progress import PHASE_WORDS, Activity, WorkerPhase
from luwu.session.progress import ProgressTeller, place_of

TIMES = Timeouts(progress_seconds=0.001, idle_progress_seconds=3)


class Worker:
    """A worker whose activity is the test's to change, with what it tells."""

    def __init__(self) -> None:
        self.activity: Activity | None = Activity(WorkerPhase.FORWARD, "h.1", 4, 0)
        self.attempts = 7
        self.link: pb.LinkCounts | None = None
        self.sent: list[pb.ProgressRequest] = []  # without its memory
        self.memory: list[int] = []
        self.teller = ProgressTeller(lambda: self.activity, self, TIMES)

    def link_counts(self) -> pb.LinkCounts | None:
        return self.link

    def send_progress(self, progress: pb.ProgressRequest) -> None:
        self.memory.append(progress.memory_bytes)
        progress.ClearField("memory_bytes")
        self.sent.append(progress)

    def send_trace(self) -> None: ...


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_what_changes_is_told_at_once_and_without_a_place(worker: Worker) -> None:
    assert worker.teller.tell(100.0)
    assert worker.sent == [pb.ProgressRequest(attempts=7, phase=pb.FORWARD, block="h.1", acquired=4)]
    worker.activity = Activity(WorkerPhase.BACKWARD, "h.0", 5, 1)
    worker.teller.tell(100.1)
    assert worker.sent[1] == pb.ProgressRequest(attempts=7, phase=pb.BACKWARD, block="h.0", acquired=5, pushed=1)
    worker.attempts, worker.link = 8, pb.LinkCounts(transport="tcp", received_bytes=5)
    worker.teller.tell(100.2)
    assert worker.sent[2].attempts == 8 and worker.sent[2].link == worker.link
    assert all(memory > 1 << 20 for memory in worker.memory)


def test_what_does_not_change_is_told_from_time_to_time_with_its_place(worker: Worker) -> None:
    for now in (100.0, 101.0, 102.9, 103.0, 104.0, 105.9):
        worker.teller.tell(now)
    assert [message.place != "" for message in worker.sent] == [False, True]
    assert worker.sent[1].place.startswith("test_session_progress.py line ")


def test_the_place_is_that_of_the_thread_that_made_the_teller(worker: Worker) -> None:
    def ask_elsewhere() -> None:
        worker.teller.tell(100.0)
        worker.teller.tell(200.0)

    thread = threading.Thread(target=ask_elsewhere)
    thread.start()
    thread.join()
    assert worker.sent[1].place.endswith("in test_the_place_is_that_of_the_thread_that_made_the_teller")


def test_the_place_is_in_the_users_program_not_in_libraries(tmp_path: Path) -> None:
    frames: list[FrameType] = []
    program = tmp_path / "train.py"
    program.write_text("import json\ndef load(look):\n    return json.loads('{}', object_hook=look)\n")
    spec = importlib.util.spec_from_file_location("train", program)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.load(lambda found: frames.append(sys._getframe(1)))
    assert "json" in frames[0].f_code.co_filename
    assert place_of(frames[0]) == "train.py line 3, in load"


def test_the_place_of_a_thread_that_has_ended_is_unknown() -> None:
    assert place_of(None) == "an unknown place"


def test_the_thread_tells_until_the_model_is_gone(worker: Worker) -> None:
    asked = threading.Event()
    activity, worker.activity = worker.activity, None

    def look() -> Activity | None:
        found = None if asked.is_set() else activity
        asked.set()
        return found

    teller = ProgressTeller(look, worker, TIMES)
    teller.start()
    teller._thread.join(60)
    assert not teller._thread.is_alive()
    assert len(worker.sent) == 1


def test_the_thread_ends_with_the_session(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(message: pb.ProgressRequest) -> None:
        raise ServerError("the session has ended")

    monkeypatch.setattr(worker, "send_progress", send)
    worker.teller.start()
    worker.teller._thread.join(60)
    assert not worker.teller._thread.is_alive()


def test_a_teller_that_is_stopped_tells_nothing_more(worker: Worker) -> None:
    times = TIMES.model_copy(update={"progress_seconds": 3600.0})
    teller = ProgressTeller(Activity, worker, times)
    teller.start()
    teller.stop()
    assert not teller._thread.is_alive() and worker.sent == []


def test_the_thread_does_not_keep_the_session() -> None:
    worker = Worker()
    teller = ProgressTeller(Activity, worker, TIMES)
    gone = weakref.ref(worker)
    worker.teller = teller
    teller.start()
    del worker
    gc.collect()
    teller._thread.join(60)
    assert not teller._thread.is_alive() and gone() is None


def test_phases_have_the_numbers_of_the_protocol_and_words() -> None:
    assert {phase.name: phase.value for phase in WorkerPhase} == dict(pb.WorkerPhase.items())
    assert set(PHASE_WORDS) == set(WorkerPhase)


@pytest.mark.parametrize(
    ("activity", "words"),
    [
        (Activity(WorkerPhase.BACKWARD, "h.3"), "in backward of block h.3"),
        (Activity(WorkerPhase.FORWARD), "in forward"),
        (Activity(WorkerPhase.ENDING, "h.3"), "at the end of the step"),
    ],
)
def test_an_activity_in_words(activity: Activity, words: str) -> None:
    assert str(activity) == words
