"""Every call of a store fails once: is the store whole afterwards, and does the program end as it should?

Each operation of harness/disk runs once for every call that it makes in its folders and for every way in which that
call may fail: the process is killed there, the call fails with EIO, or with ENOSPC, or a read or write transfers half
of its bytes. Looking at a file (`stat`, `fstat`) and closing it are such calls, too. Afterwards the store must open at
a step that was promised, with the right bits. A process that lives on must have finished the operation or ended it with
an error of luwu.errors, and must hold no more descriptors, threads, mapped files and memory than without the fault.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import Options, Row, arguments, native_file, result, run, table

from harness.disk.faults import fail_everywhere
from harness.disk.operations import OPERATIONS
from harness.disk.processes import recording_pool

NAME = "fault_points"
BAR = "every call of every operation, four faults each: the store opens right, the program goes on or says why it ends"
UNIT = "faults survived"
SEED = 19


def measure(options: Options) -> dict[str, Any]:
    """Let all calls of all operations fail."""
    native_file("harness/disk/native/libluwu_disk.so", ["crc32c"], "harness/disk/native")
    everything = [each.name for each in OPERATIONS if not each.fails_itself]
    names = options.size(everything, check=["step"])
    share = options.size(1.0, quick=0.02, check=0.02)
    with recording_pool(options.effort(2, check=1)) as pool:
        waiting = [pool.submit(fail_everywhere, name, seed=SEED, share=share) for name in names]
        reports = [each.result() for each in waiting]
    kinds = ("KILL", "IO_ERROR", "NO_SPACE", "CUT")
    table(
        ["operation", "calls", "killed", "EIO", "ENOSPC", "half", "went on", "typed error", "did not come", "wrong"],
        [
            [each.operation, each.points, *(each.tried.get(kind, 0) for kind in kinds), each.went_on, each.typed,
             len(each.missed), len(each.wrong)]
            for each in reports
        ],
    )  # fmt: skip
    wrong = [str(each) for report in reports for each in report.wrong]
    missed = [f"{report.operation}: {each}" for report in reports for each in report.missed]
    for text in [*wrong[:10], *(f"did not come: {each}" for each in missed[:10])]:
        print(text)
    points, faults = sum(each.points for each in reports), sum(sum(each.tried.values()) for each in reports)
    print(f"{points} calls, {faults} faults, {len(wrong)} wrong, {len(missed)} did not come")
    return result(
        NAME, ours=faults - len(wrong), peer=faults, bar=BAR, unit=UNIT, ok=not missed, right=not wrong,
        details={
            "calls": points,
            "operations": {each.operation: {"calls": each.points, **each.tried, "went_on": each.went_on,
                                            "typed": each.typed} for each in reports},
            "wrong": wrong, "missed": missed,
        },
    )  # fmt: skip


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    kinds = ("KILL", "IO_ERROR", "NO_SPACE", "CUT")
    faults = sum(operation.get(kind, 0) for operation in found["operations"].values() for kind in kinds)
    yield (
        f"each of {found['calls']:,} calls of a store killed, refused, or done by half",
        f"{len(found['wrong'])} of {faults:,} wrong",
        "0",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    return run(NAME, BAR, UNIT, lambda: measure(options), options)


if __name__ == "__main__":
    sys.exit(main())
