"""1,000 SIGKILLs of the server, a worker, a switch and `luwu train`, during every operation; nothing committed is lost.

A table has a row for each scenario. After each kill whatever was announced as committed is there, the run resumes at
the last committed step or the one whose commit was under way, and in the end losses, parameters, states and files are
those of a run that nobody disturbed; no process and no shared memory is left. The moment of a kill is random: while the
run opens, between two commits, within a commit, or within an operation on a store (kit/kills/store.py).

`luwu train`, its workers and its helpers are the real commands, all of them, and so is every fourth server and switch.
The others, and the workers of the scenarios without `luwu train`, are forks of this process, which has imported torch
and luwu once and runs no thread (kit/kills/processes.py); servers and switches run the same main function there. A
server of shared memory without `luwu train` is the class that its launcher uses: that transport has no command of its
own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

if __name__ == "__main__":
    # One thread for each process, before numpy and torch start more; their compiled files are kept, as where they are
    # installed.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from kit.common import Row, arguments, result, run, table
from kit.kills import work
from kit.kills.course import Scenario
from kit.kills.scenarios import Plan, do
from kit.kills.store import OPERATIONS

NAME = "crash_resume"
BAR = "1,000 kills in the full run, 0 wrong"
UNIT = "kills survived"

FULL: Plan = {
    "embedded server": 120,
    **{f"store: {operation.name}": 35 for operation in OPERATIONS},
    "shared memory: server": 40, "shared memory: worker": 40,
    "TCP: server": 45, "TCP: worker": 45, "2 servers, TCP: server": 45, "2 servers, TCP: worker": 45,
    "UDP: server": 40, "UDP: worker": 40, "UDP: switch": 50,
    "2 servers, UDP: server": 40, "2 servers, UDP: worker": 40, "2 servers, UDP: switch": 45,
    "luwu train, shared memory: launcher": 20, "luwu train, shared memory: worker": 20,
    "luwu train, TCP: launcher": 20, "luwu train, 2 servers, TCP: launcher": 20,
    "luwu train, UDP: launcher": 20, "luwu train, 2 servers, UDP: launcher": 20,
}  # fmt: skip
QUICK: Plan = {
    "embedded server": 8, "store: create": 3, "2 servers, TCP: server": 4, "UDP: switch": 4,
    "luwu train, shared memory: launcher": 2, "shared memory: worker": 3, "store: import": 3, "store: snapshot": 3,
    "store: restore": 3,
}  # fmt: skip
CHECK: Plan = {"embedded server": 1, "store: snapshot": 1, "TCP: server": 1}


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    bits = "the undisturbed run's bits" if found["bit_identical"] else "**other bits**"
    of_all = " of servers, workers, switches and `luwu train`," if "scenarios" in found else ""
    yield f"{found['kills']:,} kills (SIGKILL){of_all} and resumes", f"{len(found['wrong'])} wrong; {bits}", "-"


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    plan = options.size(FULL, quick=QUICK, check=CHECK)
    os.environ["LUWU_JOB_KEY"] = work.KEY

    def measure() -> dict[str, Any]:
        done = []
        for name, kills in plan.items():
            if not options.quick or options.seconds_left() > 0:
                done.append(do(name, kills, options.folder))
        rows = [
            [one.name, one.kills, len(one.wrong), one.resumes, one.seconds / max(1, one.kills), _moments(one)]
            for one in done
        ]
        table(["scenario", "kills", "wrong", "resumes", "s a kill", "killed while"], rows)
        kills, wrong = sum(one.kills for one in done), [f"{one.name}: {word}" for one in done for word in one.wrong]
        resumes = sum(one.resumes for one in done)
        details = {
            "kills": kills, "resumes": resumes, "wrong": wrong, "bit_identical": not wrong,
            "scenarios": {one.name: {**vars(one), "moments": dict(one.moments)} for one in done},
        }  # fmt: skip
        enough = kills == sum(plan.values()) and resumes >= kills // 2
        return result(
            NAME, ours=kills - len(wrong), peer=kills, bar=BAR, ok=enough, right=not wrong, unit=UNIT, details=details
        )

    return run(NAME, BAR, UNIT, measure, options)


def _moments(scenario: Scenario) -> str:
    return ", ".join(f"{moment} {count}" for moment, count in scenario.moments.items())


if __name__ == "__main__":
    sys.exit(main())
