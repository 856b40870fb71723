"""A server's step as a machine: do a million random histories end as in a naive reference, and is every rule needed?

A history is a random order of events: of workers that begin, push, vote, give up, leave and are replaced, also wrongly;
of an executor that ends its work in any order; of failures. After each event the machine's actions and its state must
be those of a reference that only keeps sets of what has happened (harness/native/step_histories_reference.h). Every row
of the machine's two tables and every refusal must be seen.

The control takes rules out of the machine's sources, one by one. The histories, or the rows of the table test, must
notice each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kit.common import BenchmarkError, Row, arguments, native_file, result, run, table
from kit.removals import RemovalError
from kit.step_removals import REMOVALS, all_noticed, check_complete, noticed_by

NAME = "step_machine"
BAR = "1,000,000 histories, 0 differing; every transition and refusal seen; every removed rule noticed"
UNIT = "histories as in the reference"
CONTROLLED_HISTORIES = 20_000
"""A removed rule must be noticed by this many."""


def histories(program: Path, count: int) -> list[dict[str, Any]]:
    """Run histories on all processors, each with seeds of its own."""
    parts = os.cpu_count() or 1
    starts = [1 + part * count // parts for part in range(parts + 1)]

    def part(first: int, end: int) -> dict[str, Any]:
        command = [program, str(first), str(end - first)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode not in (0, 1) or not ended.stdout:
            raise BenchmarkError(f"{program.name} ended with {ended.returncode}: {ended.stderr[-2000:]}")
        return json.loads(ended.stdout)

    with ThreadPoolExecutor(parts) as pool:
        return list(pool.map(part, starts[:-1], starts[1:]))


def unseen(parts: list[dict[str, Any]]) -> list[str]:
    """Name the transitions, refusals and actions that no part has seen."""
    return sorted(set.intersection(*(set(part["missing"]) for part in parts)))


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    noticed = found["noticed"].values()
    missing = f"**{len(found['missing'])} transitions or refusals not seen**; " if found["missing"] else ""
    yield (
        f"{found['histories']:,} random histories of a server's step, {found['steps']:,} steps",
        f"{found['different']} differ; {missing}{sum(map(bool, noticed))} of {len(noticed)} rules shown to be needed",
        "a naive reference; all",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    count = options.size(1_000_000, quick=200_000, check=10_000)
    removals = options.size(REMOVALS, quick=REMOVALS[:3], check=REMOVALS[:1])
    controlled = options.effort(CONTROLLED_HISTORIES, check=500)

    def measure() -> dict[str, Any]:
        program = native_file("luwu_step_machine", ["step_machine"], "the histories of the step machine")
        parts = histories(program, count)
        total = {name: sum(part[name] for part in parts) for name in ("histories", "events", "steps", "different")}
        missing = unseen(parts)
        seconds = max(part["seconds"] for part in parts)
        try:
            check_complete()
            if not options.check and noticed_by(None, controlled):
                raise BenchmarkError("the histories or the rows fail with nothing removed")
            noticed = all_noticed(removals, controlled)
        except RemovalError as error:
            raise BenchmarkError(str(error)) from error
        table(["rule removed", "noticed by"], [[name, by or "NOTHING"] for name, by in noticed.items()])
        print("\n".join(f"differs: {part['first']}" for part in parts if part["first"]))
        print("\n".join(f"never seen: {name}" for name in missing))
        print(f"{total['histories']} histories, {total['different']} differ; {total['steps']} steps")
        print(f"{total['steps'] / seconds * 60 / 1e6:.3g} million steps a minute; {len(noticed)} rules removed")
        right = total["different"] == 0 and not missing and all(noticed.values())
        same = total["histories"] - total["different"]
        return result(
            NAME, ours=same, peer=count, bar=BAR, ok=right and same >= count, unit=UNIT, right=right,
            details={
                **total, "seconds": seconds, "missing": missing, "noticed": noticed,
                "covered": {
                    name: [sum(each) for each in zip(*(part[name] for part in parts), strict=True)]
                    for name in ("block_transitions", "stage_transitions", "actions", "refusals", "endings")
                },
            },
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
