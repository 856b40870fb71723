"""`luwu explain` of twelve runs that are slowed on purpose, each in one way: is the cause right, and the promised gain?

Each run is explained. Then it is made again with the remedy applied, or with half of the slowdown, and the tokens a
second of both runs are compared with the gain that was promised.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kit.common import Row, arguments, result, run, table
from kit.slow_runs import FREE, Slowness, SlowRun, explained, require_limits, train

import luwu.data.source

NAME = "explain_truth"
BAR = "12 runs slowed in one way each: the named cause is right in 12, the promised gain within 20 % for at least 9"
UNIT = "runs whose cause is right"
WITHIN, LEAST_WITHIN = 0.20, 9

DISK, LINK, UPDATES, WORKER = 40_000_000, 200_000_000, 0.01, 0.25
TIGHT: dict[str, object] = {"memory": "48MiB"}
"""A budget in which blocks and states take turns."""


class Case(NamedTuple):
    """A slowed run: the part that must be named, and the remedy that is tried in the run after it."""

    name: str
    parts: tuple[str, ...]
    slow: SlowRun
    remedy: str
    after: SlowRun


def of(slowness: Slowness = FREE, **flags: object) -> SlowRun:
    """Return a run; names of flags have underscores."""
    return SlowRun({name.replace("_", "-"): value for name, value in flags.items()}, slowness)


ON_DISK, ON_LINK, ON_FEW = Slowness(disk=DISK), Slowness(link=LINK), Slowness(updates=UPDATES)
SLOW_WORKER = Slowness(worker=WORKER)
LINK_PARTS = ("pull", "push")
CASES = (
    Case("slow disk", ("disk",), of(ON_DISK, **TIGHT), "disk", of(Slowness(disk=2 * DISK), **TIGHT)),
    Case("slow disk, small batch", ("disk",), of(ON_DISK, **TIGHT, batch=2), "batch", of(ON_DISK, **TIGHT, batch=4)),
    Case("slow disk, large states", ("disk",), of(ON_DISK, **TIGHT), "states",
         of(ON_DISK, **TIGHT, optimizer="adamw8bit")),
    Case("small budget", ("disk",), of(ON_DISK, **TIGHT), "memory", of(ON_DISK, memory="1GiB")),
    Case("slow disk, each step durable", ("disk",), of(ON_DISK), "durable", of(ON_DISK, durable="10 steps")),
    Case("slow link", LINK_PARTS, of(ON_LINK), "link", of(Slowness(link=2 * LINK))),
    Case("slow link, small batch", LINK_PARTS, of(ON_LINK, batch=2), "batch", of(ON_LINK, batch=4)),
    Case("slow link, two workers", LINK_PARTS, of(ON_LINK, workers=2), "link", of(Slowness(link=2 * LINK), workers=2)),
    Case("one slow worker", ("worker",), of(SLOW_WORKER, workers=2), "worker", of(workers=2)),
    Case("one slow worker, even shares", ("worker",), of(SLOW_WORKER, workers=2, batch=32), "balance",
         of(SLOW_WORKER, workers=2, batch=32, balance=True)),
    Case("few processors for the server", ("update",), of(ON_FEW, batch=1), "threads",
         of(Slowness(updates=2 * UPDATES), batch=1)),
    Case("recompute", ("compute",), of(batch=32), "checkpoint", of(batch=32, checkpoint=False)),
)  # fmt: skip
QUICK = (CASES[0], CASES[5], CASES[8])

SETTINGS = """
[model]
layers = {layers}
hidden = {hidden}
heads = 4
seq = {seq}
[data]
path = "{text}"
validation_windows = 1
[run]
workers = 1
batch = 4
memory = "1GiB"
steps = {steps}
[sample]
length = 1
"""


def measure_case(case: Case, settings: Path, folder: Path) -> dict[str, Any]:
    """Return what was named and promised of a slowed run, and what the remedy gave."""
    before = explained(train(case.slow, settings, folder / "slow"))
    promised = {remedy["name"]: remedy["gain"] for remedy in before["remedies"]}
    after = explained(train(case.after, settings, folder / "after"))
    gain = after["tokens_per_second"] / before["tokens_per_second"]
    expected = promised.get(case.remedy, 1.0)
    return {
        "name": case.name,
        "named": before["binds"],
        "right": before["binds"] in case.parts,
        "share": before["parts"][0]["share"],
        "remedy": case.remedy,
        "promised": expected,
        "gain": gain,
        "within": abs(expected / gain - 1) <= WITHIN,
        "sentence": before["parts"][0]["sentence"],
    }


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    cases = found["cases"]
    yield (
        f"`luwu explain` of {len(cases)} runs, each slowed in one way: causes that were named rightly",
        f"{found['right']} of {len(cases)}; promised gains within {WITHIN:.0%}: {found['within']}",
        f"{len(cases)}; {LEAST_WITHIN}",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    cases = options.size(CASES, quick=QUICK, check=CASES[5:6])
    sizes = options.effort(
        {"layers": 6, "hidden": 256, "seq": 64, "steps": 24},
        quick={"layers": 6, "hidden": 256, "seq": 64, "steps": 10},
        check={"layers": 1, "hidden": 64, "seq": 16, "steps": 3},
    )  # fmt: skip

    def measure() -> dict[str, Any]:
        require_limits()
        found = []
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as scratch:
            folder = Path(scratch).resolve()
            text = folder / "text.txt"
            sources = sorted(Path(luwu.data.source.__file__).parent.glob("*.py"))
            text.write_text("".join(path.read_text() for path in sources))
            settings = folder / "settings.toml"
            settings.write_text(SETTINGS.format(text=text, **sizes))
            for number, case in enumerate(cases):
                (own := folder / str(number)).mkdir()
                found.append(measure_case(case, settings, own))
                print(f"{case.name}: {found[-1]['sentence']}", flush=True)
        right, within = (sum(each[name] for each in found) for name in ("right", "within"))
        table(
            ["run", "named", "remedy", "promised", "gain"],
            [[each["name"], each["named"], each["remedy"], each["promised"], each["gain"]] for each in found],
        )
        return result(
            NAME, ours=right, peer=len(cases), bar=BAR, ok=right == len(cases) and within >= LEAST_WITHIN, unit=UNIT,
            details={"cases": found, "right": right, "within": within},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
