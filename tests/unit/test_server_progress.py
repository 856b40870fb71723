"""The server says the name of a worker that the others wait for, and of no other."""

from __future__ import annotations

import pytest

from luwu.control.timeouts import Timeouts
from luwu.core.progress import Activity, WorkerPhase
from luwu.server.progress import LaggardWatch, ProgressTable, Report

TIMES = Timeouts(progress_seconds=2, idle_progress_seconds=3, slow_worker_seconds=10)
BETWEEN, FORWARD, BACKWARD, ENDING = (
    WorkerPhase.BETWEEN_STEPS,
    WorkerPhase.FORWARD,
    WorkerPhase.BACKWARD,
    WorkerPhase.ENDING,
)


class Run:
    """A run with a watch. `tell` gives a worker's report; time and the server's count of attempts are the test's."""

    def __init__(self) -> None:
        self.table = ProgressTable()
        self.said: list[str] = []
        self.watch = LaggardWatch(TIMES, 0.0)
        self.now = 100.0
        self.attempts = 5

    def tell(
        self,
        rank: int,
        phase: WorkerPhase,
        pushed: int = 0,
        *,
        attempts: int = 5,
        acquired: int = 0,
        place: str = "a.py line 1, in b",
    ) -> None:
        if not self.table.knows(rank):
            self.table.expect(rank, self.now)
        self.table.hear(rank, Report(attempts, Activity(phase, f"h.{acquired}", acquired, pushed), place), self.now)

    def wait(self, seconds: float) -> list[str]:
        """Look twice a second for so long, and return what is said."""
        before = len(self.said)
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            self.said += self.watch.look(self.table, 4, self.attempts, self.now)
        return self.said[before:]


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_worker_that_has_never_reported_is_named(run: Run) -> None:
    run.table.expect(1, run.now)
    run.tell(0, ENDING, 3)
    said = [text for _ in range(4) for text in (run.tell(0, ENDING, 3), *run.wait(3)) if text]
    assert len(said) == 1 and said[0].startswith("step 5 waits for worker 1, from which nothing has come for 1")
    assert run.table.last(1, run.now) is None
    run.tell(1, ENDING, 3)
    (said_then,) = run.wait(1)
    assert said_then.startswith("worker 1 goes on after 1")


def test_a_report_of_a_worker_that_has_gone_is_not_kept(run: Run) -> None:
    run.tell(0, ENDING, 3)
    run.tell(1, FORWARD)
    run.table.forget(1)
    run.table.hear(1, Report(5, Activity(FORWARD)), run.now)
    assert not run.table.knows(1) and run.wait(20) == []


def test_a_worker_that_the_others_wait_for_is_named_once_and_when_it_goes_on(run: Run) -> None:
    run.tell(0, ENDING, 3)
    run.tell(1, BACKWARD, 1, acquired=2, place="")
    assert run.wait(5) == []
    run.tell(0, ENDING, 3)
    run.tell(1, BACKWARD, 1, acquired=2, place="train.py line 7, in load")
    assert run.wait(5.5) == [
        "step 5 waits for worker 1, which has made no progress for 10 s: it is in backward of block h.2, and has "
        "pushed 1 block; its program is at train.py line 7, in load"
    ]
    assert run.wait(60) == []
    run.tell(1, BACKWARD, 2, acquired=3)
    assert run.wait(5) == ["worker 1 goes on after 70 s"]


def test_a_worker_that_tells_nothing_any_more_is_silent(run: Run) -> None:
    run.tell(0, ENDING, 3)
    run.tell(1, BACKWARD, 1)
    (said,) = run.wait(11)
    assert said.startswith("step 5 waits for worker 1, from which nothing has come for 10 s: its process is stopped")


@pytest.mark.parametrize(
    ("ahead", "behind"),
    [
        ((FORWARD, 0), (BETWEEN, 0)),
        ((BACKWARD, 2), (BACKWARD, 1)),
        ((BACKWARD, 1), (FORWARD, 0)),
        ((WorkerPhase.AFTER_BACKWARD, 3), (BACKWARD, 2)),
        ((ENDING, 0), (WorkerPhase.AFTER_BACKWARD, 3)),
    ],
)
def test_who_is_further_waits_for_who_is_not(
    run: Run, ahead: tuple[WorkerPhase, int], behind: tuple[WorkerPhase, int]
) -> None:
    run.tell(0, *ahead)
    run.tell(1, *behind)
    run.tell(2, *ahead)
    (said,) = run.wait(11)
    assert "waits for worker 1," in said


@pytest.mark.parametrize("both", [(BETWEEN, 0), (FORWARD, 0), (BACKWARD, 2), (ENDING, 3)])
def test_workers_that_are_equally_far_wait_for_the_server_and_not_for_each_other(
    run: Run, both: tuple[WorkerPhase, int]
) -> None:
    run.tell(0, *both)
    run.tell(1, *both)
    assert run.wait(60) == []


def test_a_worker_that_hangs_before_anybody_has_pushed_is_named(run: Run) -> None:
    run.tell(0, FORWARD, acquired=40)
    run.tell(1, WorkerPhase.AFTER_BACKWARD, acquired=8)
    (said,) = run.wait(11)
    assert "waits for worker 1," in said


def test_a_slow_worker_that_makes_progress_is_not_named(run: Run) -> None:
    run.tell(0, ENDING, 9)
    for acquired in range(10):
        run.tell(1, BACKWARD, 1, acquired=acquired)
        assert run.wait(9) == []


def test_a_wait_begins_when_another_goes_ahead_and_not_when_the_worker_last_moved(run: Run) -> None:
    run.tell(0, BETWEEN)
    run.tell(1, BETWEEN)
    assert run.wait(300) == []  # both evaluate
    run.tell(0, FORWARD)
    assert run.wait(9) == []
    run.tell(1, FORWARD)
    assert run.wait(60) == []


def test_a_report_of_the_step_before_counts_as_its_end(run: Run) -> None:
    run.tell(0, ENDING, 3, attempts=4)
    run.tell(1, BETWEEN)
    assert run.wait(60) == []
    run.tell(1, FORWARD)
    (said,) = run.wait(11)
    assert "waits for worker 0," in said


def test_a_step_that_ends_ends_the_wait(run: Run) -> None:
    run.tell(0, ENDING, 3)
    run.tell(1, BACKWARD, 2)
    assert len(run.wait(11)) == 1
    run.attempts = 6  # worker 1 has voted, and its report is on the way
    assert run.wait(1) == ["worker 1 goes on after 11 s"]
    run.tell(0, FORWARD, attempts=6)
    assert run.wait(9) == []


def test_a_worker_that_has_gone_neither_waits_nor_goes_on(run: Run) -> None:
    run.tell(0, ENDING, 3)
    run.tell(1, BACKWARD, 2)
    assert len(run.wait(11)) == 1
    run.table.forget(1)
    assert run.wait(60) == []


def test_one_worker_alone_is_never_waited_for(run: Run) -> None:
    run.tell(0, BACKWARD, 1)
    assert run.wait(60) == []


def test_two_laggards_are_both_named(run: Run) -> None:
    run.tell(0, ENDING, 3)
    run.tell(1, BACKWARD, 1)
    run.tell(2, BETWEEN)
    assert [said.split(",")[0] for said in run.wait(11)] == ["step 5 waits for worker 1", "step 5 waits for worker 2"]


def test_a_laggard_is_named_once_its_place_is_known(run: Run) -> None:
    run.tell(0, ENDING, 3)
    for _ in range(5):
        run.tell(1, BACKWARD, 1, place="")
        assert run.wait(3) == []
    run.tell(1, BACKWARD, 1, place="train.py line 7, in load")
    (said,) = run.wait(1)
    assert said.endswith("its program is at train.py line 7, in load")


@pytest.mark.parametrize("phase", [BETWEEN, ENDING])
def test_blocks_count_within_forward_and_backward_alone(run: Run, phase: WorkerPhase) -> None:
    run.tell(0, phase, 3, acquired=40)  # between two steps it has evaluated; at the end all wait for the server
    run.tell(1, phase, 2, acquired=8)
    assert run.wait(60) == []


DEADLINE_TOLD = (
    "workers make no progress for up to 4 s while they work, and step_deadline_seconds is 8: a good worker may be "
    "counted as lost; set it to 16 or more, or to 0"
)


def test_a_deadline_that_working_workers_nearly_miss_is_told_once(run: Run) -> None:
    run.watch = LaggardWatch(TIMES, 8.0)
    run.tell(0, FORWARD)
    said = []
    for acquired in range(1, 7):
        run.wait(4)
        run.tell(0, FORWARD, acquired=acquired)
        said.append(run.wait(0.5))
    assert said == [[], [], [DEADLINE_TOLD], [], [], []]


def test_a_worker_that_hung_once_says_nothing_of_the_deadline(run: Run) -> None:
    run.watch = LaggardWatch(TIMES, 8.0)
    for acquired in range(20):
        run.tell(0, FORWARD, acquired=acquired)
        assert run.wait(7 if acquired in (3, 9) else 1) == []


def test_pauses_between_steps_say_nothing_of_the_deadline(run: Run) -> None:
    run.watch = LaggardWatch(TIMES, 8.0)
    for attempts in range(5, 10):
        run.attempts = attempts
        run.tell(0, BETWEEN, attempts=attempts)
        run.wait(20)
        run.tell(0, FORWARD, acquired=1, attempts=attempts)
        run.tell(0, ENDING, 3, attempts=attempts)
        run.wait(20)
    assert run.said == []
