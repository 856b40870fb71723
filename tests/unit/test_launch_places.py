"""Places of workers on other machines, by tables and random histories; and the clock of the machine that has them."""

from __future__ import annotations

import random

import pytest

from luwu.launch.clock import KEPT, OtherClock
from luwu.launch.places import Grant, Places


def test_nobody_gets_a_place_before_all_of_them_are_offered() -> None:
    places = Places([1, 2, 3])
    assert (places.missing, places.begun) == (3, False)
    assert places.offer("a", 2) == []
    assert (places.missing, places.begun) == (1, False)
    assert places.offer("b", 4) == [Grant("a", (1, 2)), Grant("b", (3,))]
    assert (places.missing, places.begun) == (0, True)
    assert [places.launcher_of(rank) for rank in range(4)] == [None, "a", "a", "b"]


def test_an_offer_that_is_taken_back_before_the_run_does_not_count() -> None:
    places = Places([0, 1])
    assert places.offer("a", 1) == []
    assert places.go("a") == ((), [])
    assert places.offer("b", 1) == []
    assert places.offer("c", 1) == [Grant("b", (0,)), Grant("c", (1,))]


def test_a_lost_launchers_places_go_to_those_that_have_waited_longest() -> None:
    places = Places([0, 1, 2])
    places.offer("a", 3)
    assert places.offer("b", 1) == places.offer("c", 5) == []
    assert places.go("a") == ((0, 1, 2), [Grant("b", (0,)), Grant("c", (1, 2))])
    assert places.go("c") == ((1, 2), [])
    assert places.offer("d", 1) == [Grant("d", (1,))]
    assert places.offer("e", 1) == [Grant("e", (2,))]


def test_the_place_of_a_worker_that_has_finished_stays_its_own() -> None:
    places = Places([0, 1])
    places.offer("a", 2)
    places.finish(0)
    assert (places.launcher_of(0), places.unfinished) == (None, True)
    assert places.offer("b", 2) == []
    assert places.go("a") == ((1,), [Grant("b", (1,))])
    places.finish(1)
    assert not places.unfinished
    assert places.go("b") == ((), [])


def test_a_run_without_workers_elsewhere_has_begun() -> None:
    places = Places([])
    assert (places.begun, places.missing, places.unfinished) == (True, 0, False)
    assert places.offer("a", 1) == []


@pytest.mark.parametrize("seed", range(300))
def test_random_histories_give_each_place_to_one_launcher(seed: int) -> None:
    """A naive account of who holds what is kept beside, from the grants and the launchers that go."""
    chance = random.Random(seed)
    ranks = set(range(chance.randrange(1, 6)))
    places, held, finished, here = Places(ranks), {}, set(), {}
    waiting: list[int] = []
    for number in range(60):
        event = chance.choice(("offer", "offer", "go", "finish"))
        grants: list[Grant] = []
        if event == "offer":
            here[number] = chance.randrange(1, 4)
            waiting.append(number)
            grants = places.offer(number, here[number])
        elif event == "go" and here:
            gone = chance.choice(sorted(here))
            del here[gone]
            lost = {rank for rank, launcher in held.items() if launcher == gone} - finished
            left, grants = places.go(gone)
            assert set(left) == lost
            held = {rank: launcher for rank, launcher in held.items() if launcher != gone}
            waiting = [each for each in waiting if each != gone]
        elif event == "finish" and held.keys() - finished:
            rank = chance.choice(sorted(held.keys() - finished))
            places.finish(rank)
            finished.add(rank)
        for launcher, given in grants:
            assert launcher == waiting.pop(0) and 0 < len(given) <= here[launcher]
            assert not held.keys() & set(given) and not finished & set(given)
            held |= dict.fromkeys(given, launcher)
        free = ranks - held.keys() - finished
        assert not (places.begun and free and waiting), "a free place is given away at once"
        assert places.begun or not held
        assert places.unfinished == bool(ranks - finished)
        assert all(places.launcher_of(rank) == (None if rank in finished else held.get(rank)) for rank in ranks)


def test_the_fastest_request_says_the_others_clock_best() -> None:
    clock = OtherClock()
    assert clock.time_there(5.0) == 5.0
    clock.note(asked=10.0, told=110.9, answered=11.0)  # the answer was late
    assert clock.time_there(0.0) == pytest.approx(100.4)
    clock.note(asked=20.0, told=120.05, answered=20.1)
    assert clock.time_there(0.0) == pytest.approx(100.0)
    clock.note(asked=30.0, told=131.9, answered=32.0)
    assert clock.time_there(0.0) == pytest.approx(100.0)


def test_old_requests_do_not_count_because_clocks_drift() -> None:
    clock = OtherClock()
    clock.note(asked=0.0, told=100.0, answered=0.0)
    for second in range(1, KEPT + 1):
        clock.note(asked=second, told=second + 107.0, answered=second + 0.2)
    assert clock.time_there(0.0) == pytest.approx(106.9)
