"""Random histories of whole jobs keep every promise, and notice every rule that is broken."""

from __future__ import annotations

import pytest

from harness.jobs.controls import BROKEN, late_calls_count
from harness.jobs.reference import ViolationError
from harness.jobs.world import Rules, World, play

HISTORIES = 600
MOST_CONTROLLED = 5_000


def test_every_history_keeps_the_promises() -> None:
    worlds = [play(seed) for seed in range(HISTORIES)]
    assert {world.shape.servers for world in worlds} == {1, 2, 3}
    assert {world.shape.lasting for world in worlds} == {True, False}
    faults = {fault.split()[1] for world in worlds for fault in world.faults}
    assert faults == {"kill", "fence", "server", "all"}


def test_a_history_follows_from_its_seed() -> None:
    first, second = World(11), World(11)
    first.run()
    second.run()
    assert (first.events, first.faults, first.shape) == (second.events, second.faults, second.shape)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_noticed(name: str) -> None:
    assert notices(BROKEN[name]())


def test_late_calls_are_noticed() -> None:
    with late_calls_count():
        assert notices(None)


def notices(rules: Rules | None) -> bool:
    """Play histories until one breaks a promise."""
    for seed in range(MOST_CONTROLLED):
        try:
            play(seed, rules)
        except ViolationError:
            return True
    return False
