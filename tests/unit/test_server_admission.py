"""Places of a run's workers: every seat with every event, and the sets that the table stands for."""

from __future__ import annotations

import itertools
import random

import pytest

from luwu.server.admission import TRANSITIONS, Admission, Seat, SeatEvent


def seats(admission: Admission) -> tuple[set[int], list[int], bool]:
    return admission.joined, admission.missing, admission.deserted


def test_every_seat_meets_every_event_but_that_of_a_worker_that_never_came() -> None:
    never = {(Seat.EMPTY, event) for event in SeatEvent if event is not SeatEvent.JOIN}
    late = {(seat, SeatEvent.ATTACH) for seat in (Seat.GONE, Seat.LEFT, Seat.VACANT)}  # which changes nothing
    assert set(TRANSITIONS) == set(itertools.product(Seat, SeatEvent)) - never - late
    assert not Admission(1).attach(0, 0)
    with pytest.raises(KeyError):
        Admission(1).go(0)


def test_a_rank_is_taken_once_and_served_once() -> None:
    admission = Admission(2)
    assert seats(admission) == (set(), [0, 1], False)
    assert admission.join(0, 2) == ""
    assert admission.join(0, 2) == "worker 0 has joined already; give every worker a rank of its own"
    assert seats(admission) == ({0}, [0, 1], False)
    admission.attach(0, admission.tenure(0))
    assert admission.join(0, 2) == "worker 0 has joined already; give every worker a rank of its own"
    assert seats(admission) == ({0}, [1], False)
    admission.go(0)
    assert admission.join(0, 2) == "worker 0 has left this server; start the server again to train on"
    assert seats(admission) == (set(), [1], True)
    assert admission.went(0) and not admission.went(1)


def test_a_rank_that_went_before_it_attached_may_come_again() -> None:
    admission = Admission(1)
    assert admission.join(0, 1) == ""
    admission.go(0)
    assert seats(admission) == (set(), [0], True) and admission.went(0)
    assert admission.join(0, 1) == ""
    assert seats(admission) == ({0}, [0], False) and not admission.went(0)


def test_the_place_of_a_lost_worker_is_free_for_another() -> None:
    admission = Admission(2)
    for rank in (0, 1):
        assert admission.join(rank, 2) == ""
        admission.attach(rank, admission.tenure(rank))
    admission.lose(1)
    assert seats(admission) == ({0}, [1], False) and not admission.went(1)
    assert not admission.attach(1, 1)  # it was lost while it waited for the place
    assert seats(admission) == ({0}, [1], False)
    assert admission.join(1, 2) == "" and admission.attach(1, 2)
    assert seats(admission) == ({0, 1}, [], False)
    for rank in (0, 1):
        admission.lose(rank)
    assert seats(admission) == (set(), [0, 1], True)


def test_a_lost_worker_that_attaches_late_changes_nothing_for_the_next_one() -> None:
    admission = Admission(2)
    for tenure in (1, 2, 3):
        assert admission.join(1, 2) == "" and admission.tenure(1) == tenure
        assert [admission.holds(1, each) for each in range(4)] == [each == tenure for each in range(4)]
        assert not admission.attach(1, tenure - 1)
        assert seats(admission) == ({1}, [0, 1], False)
        admission.lose(1)
        assert not admission.holds(1, tenure)
    assert admission.join(1, 2) == "" and admission.attach(1, 4) and admission.holds(1, 4)


def test_a_worker_that_withdraws_has_never_been_there() -> None:
    admission = Admission(2)
    assert admission.join(0, 2) == "" and admission.withdraw(0)
    assert seats(admission) == (set(), [0, 1], False) and not admission.went(0)
    assert admission.join(0, 2) == ""
    admission.attach(0, admission.tenure(0))
    assert not admission.withdraw(0)
    assert seats(admission) == ({0}, [1], False)
    admission.go(0)
    assert not admission.withdraw(0)
    assert admission.went(0)


@pytest.mark.parametrize(("rank", "workers"), [(2, 2), (-1, 2), (0, 1), (0, 3)])
def test_a_worker_of_another_run_is_refused(rank: int, workers: int) -> None:
    admission = Admission(2)
    assert admission.join(rank, workers) == (
        f"worker {rank} of {workers} cannot join: this server was started for 2 workers"
    )
    assert seats(admission) == (set(), [0, 1], False) and not admission.went(rank)


def test_the_first_worker_says_how_many_there_are() -> None:
    admission = Admission(4, 2)
    assert admission.workers == 4 and admission.missing == [0, 1, 2, 3]
    for workers in (1, 5):
        assert admission.join(0, workers) == (
            f"worker 0 of {workers} cannot join: this server was started for 2 to 4 workers"
        )
    assert admission.join(3, 3).startswith("worker 3 of 3 cannot join: ")
    assert admission.workers == 4  # nobody has come
    assert admission.join(2, 3) == ""
    assert (admission.workers, admission.missing) == (3, [0, 1, 2])
    assert admission.join(0, 4) == (
        "worker 0 of 4 cannot join: this run has 3 workers, as its first one said; give every worker the same number"
    )
    assert admission.withdraw(2)
    assert admission.join(0, 2) == "" and admission.workers == 2  # the first one never did anything
    admission.go(0)
    assert admission.join(0, 3).startswith("worker 0 of 3 cannot join: this run has 2 workers")


def test_the_table_is_two_sets_joined_and_served() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        admission, came, joined, served = Admission(3), set[int](), set[int](), set[int]()
        for _ in range(30):
            rank = dice.randrange(3)
            event = dice.choice([event for event in SeatEvent if event is SeatEvent.JOIN or rank in came])
            if event is SeatEvent.JOIN:
                refusal = admission.join(rank, 3)
                assert ("has joined already" in refusal) == (rank in joined)
                assert ("has left this server" in refusal) == (rank in served - joined)
                if not refusal:
                    joined.add(rank)
                    came.add(rank)
            elif event is SeatEvent.ATTACH:
                assert admission.attach(rank, admission.tenure(rank)) == (rank in joined)
                if rank in joined:
                    served.add(rank)
            elif event is SeatEvent.WITHDRAW:
                assert admission.withdraw(rank) == (rank in joined - served)
                if rank in joined - served:
                    joined.discard(rank)
                    came.discard(rank)
            else:
                admission.go(rank)
                joined.discard(rank)
            assert seats(admission) == (joined, sorted({0, 1, 2} - served), bool(came) and not joined)
            assert {rank for rank in range(3) if admission.went(rank)} == came - joined
