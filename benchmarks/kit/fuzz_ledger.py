"""A ledger of how long each parser was fuzzed as it is now, in tests/fuzz/time.json.

An entry holds a digest of the parser's files, so that a parser that changed starts again at zero seconds.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from kit.common import ROOT
from kit.fuzz_parsers import NATIVE, PYTHON

LEDGER = ROOT / "tests" / "fuzz" / "time.json"


class Fuzzed(NamedTuple):
    """Seconds and executions without a finding since a parser's files have been what they are."""

    seconds: int = 0
    executions: int = 0


def digest(target: str) -> str:
    """Return a digest of the files of a target's parser."""
    text = hashlib.sha256()
    for file in sorted({**NATIVE, **PYTHON}[target]):
        text.update((ROOT / file).read_bytes())
    return text.hexdigest()[:16]


def fuzzed(target: str, ledger: Path = LEDGER) -> Fuzzed:
    """Return how long a parser was fuzzed as it is now; nothing where its files have changed since."""
    entry = _read(ledger).get(target)
    if entry is None or entry["files"] != digest(target):
        return Fuzzed()
    return Fuzzed(entry["seconds"], entry["executions"])


def note(target: str, seconds: int, executions: int, *, found: bool, ledger: Path = LEDGER) -> Fuzzed:
    """Add a run of a target to the ledger and return its entry; a finding starts the parser again at zero."""
    before = fuzzed(target, ledger)
    now = Fuzzed() if found else Fuzzed(before.seconds + seconds, before.executions + executions)
    entries = {**_read(ledger), target: {"files": digest(target), **now._asdict()}}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entries[name])}" for name in sorted(entries))
    ledger.write_text(f"{{\n{lines}\n}}\n")
    return now


def _read(ledger: Path) -> dict[str, dict[str, int | str]]:
    return json.loads(ledger.read_text()) if ledger.exists() else {}
