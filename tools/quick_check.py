"""Compares what --quick says of each bar with the recorded full run: it must agree, or not have decided.

usage: python tools/quick_check.py QUICK.json FULL.json

Both are what `tools/bench.py` writes to benchmarks/results. Prints a line for each benchmark and, as the last line, one
JSON object as a benchmark's. The exit status is 1 where --quick contradicts the full run, failed, or is missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from kit.common import emit, result, table  # noqa: E402 - the benchmarks are programs, not a package

NAME = "quick_check"
BAR = "--quick agrees with the recorded full run for every bar, or says null"
WORDS = {True: "met", False: "missed", None: "not decided"}
Results = Mapping[str, Mapping[str, Any]]


def read(path: Path) -> Results:
    """The results of a report, by name."""
    return {found["name"]: found for found in json.loads(path.read_text())["results"]}


def judge(quick: Mapping[str, Any] | None, full: Mapping[str, Any]) -> str:
    """Say in a word or two how a quick run stands to the full one."""
    if quick is None:
        return "missing"
    if quick["failed"]:
        return "failed"
    if quick["ok"] is None:
        return "not decided"
    return "agrees" if quick["ok"] is full["ok"] else "contradicts"


def compare(quick: Results, full: Results) -> dict[str, Any]:
    """Print a table of all benchmarks of the full run, and return the result."""
    found = {name: judge(quick.get(name), of_full) for name, of_full in full.items()}
    table(
        ["benchmark", "full", "quick", "", "seconds"],
        [
            [name, WORDS[full[name]["ok"]], WORDS[quick[name]["ok"]] if name in quick else "-", word,
             quick[name]["seconds"] if name in quick else "-"]
            for name, word in found.items()
        ],
    )  # fmt: skip
    wrong = [name for name, word in found.items() if word not in ("agrees", "not decided")]
    agreeing = sum(word == "agrees" for word in found.values())
    return result(
        NAME, ours=agreeing, peer=len(found), bar=BAR, ok=not wrong, unit="bars that --quick decides",
        details={"found": found, "wrong": wrong},
    )  # fmt: skip


def main() -> int:
    """Compares the two reports and returns the exit status."""
    if len(sys.argv) != 3:
        raise SystemExit("usage: python tools/quick_check.py QUICK.json FULL.json")
    found = compare(read(Path(sys.argv[1])), read(Path(sys.argv[2])))
    emit(found)
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
