"""The power fails at any moment of any operation of a store: is it whole afterwards, and is every sync needed for that?

Each operation runs once, and every call that changes its folders is recorded (harness/disk). From the record this
program builds the disks that a power cut may leave: of all that no sync had made durable any part may be there, in any
order, and of a write any sectors. Each disk is another one than those that must hold the same. It is opened as a server
opens it, and all values, states and snapshots are read. It must hold what the operation had said it holds, or what it
was about to become.

The control takes each sync of the program away in turn, and then lets it come as late as it may: some disk must be
wrong then. A sync in the store's sources that no operation reaches fails the run, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from kit.common import Options, Row, arguments, native_file, result, run, table

from harness.disk.cutting import Report, cut
from harness.disk.operations import OPERATIONS
from harness.disk.processes import recording_pool
from harness.disk.removing import Removal, removals
from harness.disk.sites import calls_in_sources

NAME = "power_cuts"
BAR = "10,000 states or more, every one at a step that was promised, bit for bit; each removed sync and order is caught"
UNIT = "states that open right"
SEED = 19
QUICK_SHARE = 0.2


def cut_all(pool: Executor, names: Sequence[str], by_chance: int, share: float) -> list[Report]:
    """Open the states of all operations, and print a line for each."""
    waiting: list[Future[Report]] = [
        pool.submit(cut, name, by_chance=by_chance, seed=SEED + number, share=share)
        for number, name in enumerate(names)
    ]
    reports = [each.result() for each in waiting]
    table(["operation", "states", "wrong"], [[each.operation, each.states, len(each.wrong)] for each in reports])
    for report in reports:
        for wrong in report.wrong[:3]:
            print(f"wrong: {wrong}")
    return reports


def remove_all(pool: Executor, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Take each sync away, and print what noticed it; by place and by how it was changed."""
    found: dict[tuple[str, str], list[Removal]] = {}
    for each in pool.map(removals, names):
        for removal in each:
            found.setdefault((removal.line, removal.how), []).append(removal)
    rows = {}
    for (line, how), tried in sorted(found.items()):
        caught = [removal for removal in tried if removal.caught]
        needed = any(removal.needed for removal in tried)
        rows[f"{line} {how}"] = {
            "caught_by": [removal.operation for removal in caught], "needed": needed, "ok": bool(caught) or not needed,
            "first": caught[0].caught if caught else "",
        }  # fmt: skip
    words = {(True, True): "caught", (False, True): "NOT CAUGHT", (False, False): "as good late"}
    table(
        ["sync", "", "caught by, operations"],
        [[key, words[bool(row["caught_by"]), row["needed"]], len(row["caught_by"])] for key, row in rows.items()],
    )
    return rows


def measure(options: Options) -> dict[str, Any]:
    """Cut the power of all operations, then take all syncs away."""
    native_file("harness/disk/native/libluwu_disk.so", ["crc32c"], "harness/disk/native")
    names = options.size([each.name for each in OPERATIONS], check=["create", "step"])
    by_chance = options.size(600, quick=50, check=5)
    share = options.size(1.0, quick=QUICK_SHARE, check=0.05)
    controlled = options.size(names, quick=["create", "step"], check=["step"])
    with recording_pool(options.effort(2, check=1)) as pool:
        reports = cut_all(pool, names, by_chance, share)
        removed = remove_all(pool, controlled)
    reached = {key.split(" ")[0] for key in removed}
    unreached = [line for line in calls_in_sources() if line not in reached] if controlled == names else []
    for line in unreached:
        print(f"no operation reaches the sync at {line}")
    states, wrong = sum(each.states for each in reports), [str(each) for report in reports for each in report.wrong]
    caught = [row["ok"] for key, row in removed.items() if key.endswith("removed")]
    print(f"{states} states, {len(wrong)} wrong; {sum(caught)} of {len(caught)} removed syncs caught")
    return result(
        NAME, ours=states - len(wrong), peer=states, bar=BAR, unit=UNIT, ok=states >= 10_000,
        right=not wrong and not unreached and (controlled != names or all(row["ok"] for row in removed.values())),
        details={
            "operations": {each.operation: each.states for each in reports}, "wrong": wrong, "removed": removed,
            "unreached": unreached,
        },
    )  # fmt: skip


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    removed = [row for key, row in found["removed"].items() if key.endswith("removed")]
    states, operations = sum(found["operations"].values()), len(found["operations"])
    needed = sum(row["ok"] for row in removed)
    yield (
        f"{states:,} simulated power cuts in {operations} operations of a store",
        f"{len(found['wrong'])} damaged stores; {needed} of {len(removed)} syncs shown to be needed",
        "0; all",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    return run(NAME, BAR, UNIT, lambda: measure(options), options)


if __name__ == "__main__":
    sys.exit(main())
