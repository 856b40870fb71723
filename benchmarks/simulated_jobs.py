"""Whole jobs in a million random histories: does each come to what its data says, and is every rule needed?

A history has one to three servers with their disks and up to three workers. What is under way between them, and on
the disks, happens in a random order; among it workers and servers are killed, workers are counted as lost although they
live, and all servers lose their power at once. Servers decide by the step machine and by the machine of places, workers
by the decision on several servers: the code that real processes run. What is around it is `harness/jobs`.

Each attempt's end follows from its number, so the data alone says what the stores must hold after each step, whatever
happens. No step that a worker was told as committed may be lost (with clipping the last one may, if a server dies: it
is answered before it is durable), no gradient may count twice or come from a lost worker, no two servers may commit
different steps, and every history must come to its end.

The server's threads and messages are not run but written again in `harness/jobs`: joining, losses, and what is answered
when. First values, UDP, switches, links that break and come back, and places that nobody takes in time are left out;
timeouts are over only when nothing else is under way. Tests with real processes have these.

The control breaks the rules of the processes around the machines, one by one; the histories must notice each.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kit.common import Row, arguments, result, run, table

from harness.jobs.controls import BROKEN, LATE_CALLS, late_calls_count
from harness.jobs.reference import ViolationError
from harness.jobs.world import play
from luwu.core.shares import even_share

NAME = "simulated_jobs"
BAR = "1,000,000 histories in the full run, 0 violations; every mutation found"
UNIT = "histories without a violation"
ENOUGH = 3
CONTROLLED_HISTORIES = 20_000
"""A broken rule must be noticed by this many."""


class Part(NamedTuple):
    """Histories of one process: how many, their events and faults, and those that broke a promise, by seed."""

    histories: int
    events: int
    faults: Counter[str]
    violations: dict[int, str]


def play_part(seeds: range) -> Part:
    """Play histories until some have broken a promise."""
    events, faults, violations = 0, Counter[str](), {}
    for played, seed in enumerate(seeds, 1):
        try:
            world = play(seed)
        except Exception as error:  # a machine that throws is at fault, too
            violations[seed] = f"{type(error).__name__}: {error}"
            if len(violations) == ENOUGH:
                return Part(played, events, faults, violations)
        else:
            events += world.events
            faults.update(fault.split()[1] for fault in world.faults)
    return Part(len(seeds), events, faults, violations)


def play_all(count: int) -> Part:
    """Play histories on all processors."""
    parts = os.cpu_count() or 1
    with multiprocessing.Pool(parts) as pool:
        found = pool.map(play_part, [range(count)[even_share(count, part, parts)] for part in range(parts)])
    faults: Counter[str] = Counter()
    violations: dict[int, str] = {}
    for part in found:
        faults.update(part.faults)
        violations |= part.violations
    return Part(sum(part.histories for part in found), sum(part.events for part in found), faults, violations)


def noticed(name: str, count: int) -> str:
    """Break a rule; return what the first history says that notices it, empty: none does."""
    rules = BROKEN[name]() if name in BROKEN else None
    with late_calls_count() if rules is None else contextlib.nullcontext():
        for seed in range(count):
            try:
                play(seed, rules)
            except ViolationError as error:
                return f"history {seed}: {error}"
    return ""


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    yield (
        f"{found['histories']:,} random histories of whole jobs of one to three servers, {found['faults']:,} faults",
        f"{len(found['violations'])} broken promises; {sum(map(bool, found['noticed'].values()))} of "
        f"{len(found['noticed'])} rules shown to be needed",
        "0; all",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    count = options.size(1_000_000, quick=10_000, check=200)
    controlled = options.effort(CONTROLLED_HISTORIES, check=CONTROLLED_HISTORIES)

    def measure() -> dict[str, Any]:
        began = time.monotonic()
        found = play_all(count)
        seconds = time.monotonic() - began
        controls = {name: noticed(name, controlled) for name in (*BROKEN, LATE_CALLS)}
        table(["rule broken", "noticed by"], [[name, why or "NOTHING"] for name, why in controls.items()])
        for seed, violation in found.violations.items():
            print(f"history {seed}: {violation}")
        kinds = ", ".join(f"{number} of {kind}" for kind, number in sorted(found.faults.items()))
        print(f"{found.histories} histories in {seconds:.0f} s, {found.events} events, faults: {kinds}")
        right = not found.violations and all(controls.values())
        same = found.histories - len(found.violations)
        return result(
            NAME, ours=same, peer=count, bar=BAR, ok=right and same >= count, unit=UNIT, right=right,
            details={
                "histories": found.histories, "events": found.events, "seconds": seconds,
                "faults": sum(found.faults.values()), "faults_by_kind": dict(found.faults),
                "violations": {str(seed): why for seed, why in found.violations.items()}, "noticed": controls,
            },
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
