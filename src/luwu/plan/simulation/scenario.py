"""Conditions of a simulated run: choices of `luwu simulate`, each declared here alone; its flag comes from here."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from luwu.core.settings import Flag, Group
from luwu.plan.choices import ChoiceGroups

Order = Literal["step", "layer"]
ORDERS: tuple[Order, ...] = get_args(Order)


class ScenarioChoices(Group):
    """Conditions of a simulated run."""

    steps: int = 3
    """steps to play; the first records the pass"""
    order: Order = "step"
    """division of the server's threads, step or layer"""
    stragglers: int = 0
    """workers that are slow"""
    slowdown: float = 1.5
    """factor on the time of slow workers"""
    jitter: Annotated[float, Flag(default="0")] = 0.0
    """standard deviation of speeds, 0.1 is 10 %"""
    loss: Annotated[float, Flag(default="0")] = 0.0
    """share of packets each link loses, 0 to 1"""
    fan_in: int = 31
    """children of a switch"""
    seed: int = 0
    """seed of all random numbers"""


class SimulationGroups(ChoiceGroups):
    """Groups of choices of a simulated run."""

    scenario: ScenarioChoices = ScenarioChoices()
