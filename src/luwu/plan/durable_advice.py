"""Advice on `durable`: how often a run should put its steps on the disk."""

from __future__ import annotations

import math
from collections.abc import Sequence

from luwu.core.durability import EACH_STEP
from luwu.core.units import bytes_text, seconds_text
from luwu.core.words import counted
from luwu.plan.planning import Plan, make_plan, with_rows

DURABLES = ("step", "10 steps", "100 steps")
"""Values that are compared, from the one that a crash costs the least to the one that writes the least."""


AS_FAST_PERCENT = 95
"""Percent of the best throughput that counts as the same: a crash costs more than that small a gain is worth."""


def compare_durables(plan: Plan) -> list[Plan]:
    """Return the plan with each of `DURABLES`, and with its own value first if it is another; only those that fit."""
    own = str(plan.request.settings.run.durable)
    values = DURABLES if own in DURABLES else (own, *DURABLES)
    found = [plan if value == own else _with_durable(plan, value) for value in values]
    return [each for each in found if each.fits]


def best_of(plans: Sequence[Plan]) -> Plan:
    """Return the fastest plan; of those that are as fast, the one that a crash costs the least time."""
    fastest = max(each.tokens_per_second for each in plans)
    return min((each for each in plans if 100 * each.tokens_per_second >= AS_FAST_PERCENT * fastest), key=crash_seconds)


def crash_steps(plan: Plan) -> float:
    """Return the most answered steps that a crash of the server costs: those from one commit point to the next."""
    return 0.0 if plan.request.settings.run.commit_points == EACH_STEP else plan.commits.every


def crash_seconds(plan: Plan) -> float:
    """Return the time of those steps."""
    return crash_steps(plan) * plan.step.seconds


def durable_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of a comparison: names and values as text; none where nothing fits."""
    plans = compare_durables(plan)
    rows = [(_name(each), _words(each)) for each in plans]
    return [*rows, ("recommended", f'--durable "{_name(best_of(plans))}"')] if plans else []


def _name(plan: Plan) -> str:
    return str(plan.request.settings.run.durable)


def _words(plan: Plan) -> str:
    steps = crash_steps(plan)
    if not steps:
        cost = "costs the last step at most, and the one under way"
    elif math.isinf(steps):
        cost = "costs the whole run"
    else:
        cost = f"costs {counted(math.ceil(steps), 'step')} more at most, {seconds_text(crash_seconds(plan))}"
    return (
        f"{plan.tokens_per_second:,.0f} tokens/s; {bytes_text(plan.wear.day_bytes)} written to each disk a day; "
        f"a crash of the server {cost}"
    )


def _with_durable(plan: Plan, value: str) -> Plan:
    request = plan.request.with_run(durable=value)
    return make_plan(with_rows(request, request.rows, request.settings.run.micro_batch))
