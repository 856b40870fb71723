"""Is the house in order: do rooms import each other in circles, and which files, classes and functions are too large?

Rooms are the folders of src/luwu, by the imports of their modules, and the folders of native, by their includes. A
function's docstring does not count. What is too large for a good reason is listed in `EXCEPTIONS`, with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kit.common import ROOT, Row, arguments, result, run, table
from kit.structure_sources import Size, circles, cxx_rooms, python_rooms, sizes, sources

NAME = "structure"
BAR = "no circle of rooms; no class over 30 methods, file over 400 lines or function over 60 but those with a reason"
UNIT = "findings without a reason"
LIMITS = {"file": 400, "class": 30, "function": 60}
FOLDERS = ("src", "native", "harness", "tests", "benchmarks", "tools")

_FLAGS = "its lines are the flags of a command, one a line, and a call that hands them on"
_ONE_TABLE = "one table of cases, read from top to bottom"

EXCEPTIONS: dict[str, str] = {
    "src/luwu/cli/export.py:export": _FLAGS,
    "native/step/machine.h:Machine": "a method for each event, and for each decision",
    "harness/disk/operations.py": "one table of every operation on a store, each with what it promises",
    "tests/native/support.cc:expected_contents": "the reference of a step, computed without any of the code under test",
    "tests/native/test_clipping.cc": _ONE_TABLE,
    "tests/native/test_conformance.cc": "one suite that every transport runs",
    "tests/native/test_conformance.cc:TEST_CASE": "one history of several workers; its parts make no sense alone",
    "tests/native/test_device.cc:TEST_CASE": "one history of a ring that wraps; its parts make no sense alone",
    "tests/native/test_pipeline.cc": _ONE_TABLE,
    "tests/native/test_protocol_properties.cc:run_job": "one simulated job, with every choice drawn in order",
    "tests/native/test_snapshots.cc": _ONE_TABLE,
    "tests/integration/test_network_udp.py": "one suite on namespaces that are made once for the file",
    "tests/unit/test_worker_outer.py": "one suite of outer units",
    "benchmarks/network_faults.py:main": "the faults one after another on one site, and the result of all",
    "benchmarks/optimizer_disk.py:main": "the sides one after another on one disk, and the result of all",
}
"""Parts over a limit, and the reasons; a reason that is not needed any more is a finding, too."""


class Finding(NamedTuple):
    """Something that is not in order: its kind, where it is, how large, the limit, and the reason, if there is one."""

    kind: str
    place: str
    count: int
    limit: int
    reason: str


def circle_findings(name: str, edges: Mapping[str, Iterable[str]]) -> list[Finding]:
    """Return a finding for each circle."""
    return [Finding("circle", f"{name}: {', '.join(circle)}", len(circle), 0, "") for circle in circles(edges)]


def size_findings(found: Iterable[Size], exceptions: Mapping[str, str]) -> list[Finding]:
    """Return what is over its limit, and the exceptions that are not."""
    over = [
        Finding(each.kind, each.place, each.count, LIMITS[each.kind], exceptions.get(each.place, ""))
        for each in found
        if each.count > LIMITS[each.kind]
    ]
    needed = {each.place for each in over}
    stale = [Finding("reason", place, 0, 0, "") for place in exceptions if place not in needed]
    return sorted(over, key=lambda each: (bool(each.reason), each.kind, -each.count)) + stale


def look(root: Path, folders: Iterable[str] = FOLDERS, exceptions: Mapping[str, str] = EXCEPTIONS) -> list[Finding]:
    """Return all findings in a checkout."""
    folders = tuple(folders)
    found = circle_findings("Python", python_rooms(root / "src" / "luwu")) if "src" in folders else []
    if "native" in folders:
        found += circle_findings("C++", cxx_rooms(root / "native"))
    measured = [size for path in sources(root, folders) for size in sizes(path, str(path.relative_to(root)))]
    inside = {
        place: why for place, why in exceptions.items() if place.startswith(tuple(f"{each}/" for each in folders))
    }
    return found + size_findings(measured, inside)


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    limits = f"{LIMITS['file']} lines, {LIMITS['class']} methods, {LIMITS['function']} lines"
    yield (
        f"circles of rooms, and files, classes and functions over {limits}",
        f"{len(found['findings'])} without a reason, {found['with_reason']} with one",
        "0 without a reason",
    )


def main() -> int:
    """Looks, prints a table, and returns the exit status."""
    options = arguments(__doc__ or "")

    def measure() -> dict[str, object]:
        found = look(ROOT)
        open_ = [each for each in found if not each.reason]
        table(
            ("kind", "where", "size", "limit", "reason"),
            [(each.kind, each.place, each.count, each.limit, each.reason or "NONE") for each in found],
        )
        return result(
            NAME, ours=len(open_), peer=0, bar=BAR, ok=not open_, unit=UNIT,
            details={"findings": [each._asdict() for each in open_], "with_reason": len(found) - len(open_)},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
