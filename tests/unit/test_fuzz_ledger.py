"""The ledger of how long each parser was fuzzed as it is now."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kit import fuzz_ledger
from kit.fuzz_ledger import Fuzzed, fuzzed, note


def test_runs_add_up_and_a_finding_starts_again(tmp_path: Path) -> None:
    ledger = tmp_path / "time.json"
    assert fuzzed("job", ledger) == Fuzzed()
    assert note("job", 60, 1000, found=False, ledger=ledger) == Fuzzed(60, 1000)
    assert note("dcp", 5, 7, found=False, ledger=ledger) == Fuzzed(5, 7)
    assert note("job", 60, 500, found=False, ledger=ledger) == fuzzed("job", ledger) == Fuzzed(120, 1500)
    assert note("job", 60, 500, found=True, ledger=ledger) == fuzzed("job", ledger) == Fuzzed()
    assert fuzzed("dcp", ledger) == Fuzzed(5, 7)
    assert list(json.loads(ledger.read_text())) == ["dcp", "job"]


def test_a_parser_that_changed_starts_again(tmp_path: Path) -> None:
    ledger = tmp_path / "time.json"
    note("job", 60, 1000, found=False, ledger=ledger)
    entries = json.loads(ledger.read_text())
    entries["job"]["files"] = "0" * 16  # what another version of the files gives
    ledger.write_text(json.dumps(entries))
    assert fuzzed("job", ledger) == Fuzzed()
    assert note("job", 60, 1, found=False, ledger=ledger) == Fuzzed(60, 1)


def test_a_digest_is_of_the_parsers_files_alone() -> None:
    assert fuzz_ledger.digest("frames") == fuzz_ledger.digest("frames") != fuzz_ledger.digest("packet")
