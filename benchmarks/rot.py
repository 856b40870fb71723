"""Rot: flipped bits, stale sectors and lost writes in every structure of a store: is each noticed by name, or harmless?

Small stores in memory are damaged in place, one damage at a time, and looked at in every way in which somebody reads
them: as a server opens them, as an export and a snapshot are read, `luwu store info` and `verify`, the claim of a run,
an import that is given again. What is shown is compared with what the whole store shows. Every bit of both slots of
commit.luwu is flipped, in each copy alone and in all copies at once, and of manifest.json, run.json, origin.json and
import.json, of an imported model's files, of page 0 of each file of chunks, and of each chunk's header; of what lies
between headers a share.
Stale are 512 and 4096 bytes at each place of each file, as they were at an earlier step or before their first write.
Lost is each write of a step that was rolled back or killed and made again. Damage with a right checksum is tried, too:
the judgement has to complain of it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kit.common import Options, Row, arguments, native_file, result, run, table

from harness.disk import rotten_stores
from harness.disk.damages import Share, damages
from harness.disk.lost_writes import RETRIED, recorded, try_lost_writes
from harness.disk.processes import recording_pool, scratch
from harness.disk.rot import Tally, Verdict, try_all
from harness.disk.rot_controls import controls
from harness.disk.rotten_stores import Subject

NAME = "rot"
BAR = "0 silent acceptances, 0 stores that became fresh"
UNIT = "damages that were not noticed by name and not harmless"
FULL = Share(bits=1, slots=1, padding=1 / 32, deep=1 / 4, sectors=1)
IMPORTED = Share(bits=1, slots=1 / 64, padding=1 / 64, deep=1 / 16, sectors=1)
EIGHT_BIT = Share(bits=1 / 4, slots=1 / 64, padding=1 / 64, deep=1 / 4, sectors=1)
QUICK = Share(bits=1 / 48, slots=1 / 2048, padding=1 / 4096, deep=1 / 4, sectors=1 / 8)
CHECK = Share(bits=1 / 1024, slots=1 / 65536, padding=1 / 65536, deep=1, sectors=1 / 128)
MAKERS: tuple[tuple[Callable[[Path], Subject], Share], ...] = (
    (rotten_stores.trained, FULL),
    (rotten_stores.eight_bit, EIGHT_BIT),
    (rotten_stores.imported, IMPORTED),
    (rotten_stores.unfinished, IMPORTED),
)
"""Stores, and how much of each is tried in a full run."""


def try_part(maker: int, share: Share, part: int, parts: int) -> tuple[Tally, dict[str, bool]]:
    """Make one of the stores in memory, and try one part of its damages; the first part tries controls."""
    tally = Tally()
    with scratch() as folder:
        subject = MAKERS[maker][0](folder)
        judged = controls(subject) if maker == part == 0 else {}
        found = (damage for number, damage in enumerate(damages(subject, share)) if number % parts == part)
        try_all(subject, found, tally)
    return tally, judged


def try_lost(place: int) -> Tally:
    """Lose the writes of one of the steps that are made again."""
    tally = Tally()
    with scratch() as folder:
        try_lost_writes(RETRIED[place].name, recorded(place), folder, tally)
    return tally


def measure(options: Options) -> dict[str, Any]:
    """Try everything, or the share that the options have time for."""
    native_file(
        "harness/disk/native/libluwu_disk.so", ["--test-case=none"], "the recorder of what a process does to its disk"
    )
    shares = [options.size(share, quick=QUICK, check=CHECK) for _, share in MAKERS]
    parts = options.effort(8, quick=2, check=1)
    tally, begun = Tally(), time.monotonic()
    with recording_pool(1 if options.check else os.cpu_count() or 1) as pool:
        lost = [pool.submit(try_lost, place) for place in range(len(RETRIED))]
        tried = [pool.submit(try_part, 0, shares[0], part, parts) for part in range(parts)]
        tried += [pool.submit(try_part, maker, share, 0, 1) for maker, share in enumerate(shares) if maker > 0]
        for each in lost:
            tally.join(each.result())
        judged: dict[str, bool] = {}
        for part_of in tried:
            found, controlled = part_of.result()
            tally.join(found)
            judged |= controlled
    return _result(tally, judged, time.monotonic() - begun)


def _result(tally: Tally, judged: dict[str, bool], seconds: float) -> dict[str, Any]:
    header = ["damage", "tried", *(verdict.name.lower() for verdict in Verdict)]
    rows = [
        [kind, counts.total(), *(counts[verdict] for verdict in Verdict)]
        for kind, counts in sorted(tally.counts.items())
    ]
    totals = {verdict.name.lower(): tally.total(verdict) for verdict in Verdict}
    table(header, [*rows, ["all", sum(totals.values()), *totals.values()]])
    for text in tally.bad[:20]:
        print(text)
    for text, right in judged.items():
        print(f"control: {text}: {'judged as it must be' if right else 'JUDGED WRONGLY'}")
    kinds = {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}
    return result(
        NAME, ours=len(tally.bad), peer=None, bar=BAR, ok=not tally.bad, unit=UNIT,
        right=not tally.bad and all(judged.values()),
        details={"tried": sum(totals.values()), **totals, "seconds": seconds, "kinds": kinds, "controls": judged},
    )  # fmt: skip


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    yield (
        f"{found['tried']:,} flipped bits, stale sectors and lost writes in a store",
        f"{found['noticed']:,} noticed by name, {found['harmless']:,} harmless, {found['unnamed']} not named, "
        f"{found['silent']} accepted silently; {found['fresh']} stores became fresh",
        "each noticed by name or harmless",
    )


def main() -> int:
    """Print what was found."""
    options = arguments(__doc__ or NAME)
    return run(NAME, BAR, UNIT, partial(measure, options), options)


if __name__ == "__main__":
    sys.exit(main())
