"""Snapshots every few steps against none, out of core: what they cost the steps, and what they take of the disk.

Both sides train the same model from the same values on the same batches, each with a server of its own whose budget is
about a fifth of its store. A sample is as many steps as there are from one snapshot to the next, so it has what a
snapshot costs wherever it falls: on the step that writes to a new file as well. A third store, of which most is
frozen, keeps several snapshots: what they take beside the store is compared with what as many copies of the committed
step would.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import Options, Row, arguments, result, run, table
from kit.luwu_side import LuwuSide, disk_bytes
from kit.sampling import Bar, compare

NAME = "snapshots"
BAR = "steps at most 2 % slower than without; snapshots take no more than what changed; the same losses"
UNIT = "seconds of a step, over those without snapshots"
MOST = Bar("with", "without", 1.02, at_least=False)
SLACK_BYTES = 1 << 20  # of a snapshot: page 0, a record, folders
HIDDEN = 512
EVERY = 5
KEPT = 4


def measure_cost(options: Options) -> dict[str, Any]:
    """Alternating samples of both sides; their ratio, and that of the steps after a snapshot to the others."""
    hidden = options.size(HIDDEN, check=64)
    layers, memory, seq = options.size((32, 256 << 20, 256), quick=(4, 96 << 20, 32), check=(1, 64 << 20, 32))
    settings = {
        "shape": {"layers": layers, "hidden": hidden, "heads": 8, "seq": seq}, "rows": 8, "steps": EVERY,
        "warm_up": EVERY, "dtype": "bfloat16", "checkpoint": True, "meta": True, "memory": memory,
        "folder": str(options.folder),
    }  # fmt: skip
    samples: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    with LuwuSide(settings) as without, LuwuSide({**settings, "snapshots": (EVERY, 2)}) as taking:
        sides = {"without": without, "with": taking}
        for side in sides.values():
            side.wait_ready()

        def take_round() -> dict[str, float]:
            for name, side in sides.items():
                samples[name].append(side.sample()[0])
            return {name: found[-1]["seconds"] for name, found in samples.items()}

        compared = compare(options, take_round, [MOST], rounds=max(3, options.repeats), share=0.7)
        taken, failure = taking.server_sample["snapshots"], taking.server_sample["snapshot_failure"]
    ratios = [one["seconds"] / other["seconds"] for one, other in zip(samples["with"], samples["without"], strict=True)]
    # The last step of a sample is the one that is kept: its version is written to again two steps later.
    after = [
        one["step_seconds"][1] / other["step_seconds"][1]
        for one, other in zip(samples["with"], samples["without"], strict=True)
    ]
    table(
        ["side", "s/step", *(f"step {number + 1}" for number in range(EVERY))],
        [
            [name, statistics.median(sample["seconds"] for sample in found),
             *(statistics.median(sample["step_seconds"][i] for sample in found) for i in range(EVERY))]
            for name, found in samples.items()
        ],
    )  # fmt: skip
    return {
        "every": EVERY,
        "ratio": compared.ratio(MOST),
        "ok": compared.ok,
        "rounds": len(compared.rounds),
        "ratios": ratios,
        "after": statistics.median(after),
        "taken": taken,
        "failure": failure,
        "samples": samples,
        "same_losses": [sample["losses"] for sample in samples["with"]]
        == [sample["losses"] for sample in samples["without"]],
    }


def measure_sharing(options: Options) -> dict[str, Any]:
    """Bytes on disk of the snapshots of a store that is mostly frozen, and of as many copies."""
    layers, hidden = options.size((16, HIDDEN), quick=(4, HIDDEN), check=(4, 64))
    settings = {
        "shape": {"layers": layers, "hidden": hidden, "heads": 8, "seq": 32}, "rows": 2, "steps": KEPT + 2,
        "warm_up": 0, "dtype": "bfloat16", "meta": True, "memory": 256 << 20, "folder": str(options.folder),
        "frozen": layers * 3 // 4, "snapshots": (1, KEPT),
    }  # fmt: skip
    with LuwuSide(settings) as side:
        side.wait_ready()
        side.sample()
        side.stop()
        version = (side.store / "version-0.luwu").stat().st_blocks * 512
        frozen = (side.store / "frozen.luwu").stat().st_blocks * 512
        kept = [folder for folder in (side.store / "snapshots").iterdir() if folder.name.isdigit()]
        own = side.store_bytes - 2 * version - frozen  # the rest is the snapshots', and spare files for the next step
        copies = sum(disk_bytes(folder) for folder in kept)
    print(
        f"{len(kept)} snapshots take {own / 1e6:.1f} MB; as many copies {copies / 1e6:.1f} MB; a version is "
        f"{version / 1e6:.1f} MB, frozen are {frozen / 1e6:.1f} MB"
    )
    return {
        "kept": len(kept),
        "snapshot_bytes": own,
        "copies_bytes": copies,
        "changed_bytes": len(kept) * version,
        "frozen_share": frozen / (frozen + version),
    }


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    yield (
        f"a step out of core with a snapshot every {found['every']} steps",
        f"{found['ratio']:.3f} times the step without; the one after a snapshot {found['after']:.2f}",
        "1",
    )
    yield (
        f"{found['kept']} snapshots of a store that is {found['frozen_share']:.0%} frozen",
        f"{found['snapshot_bytes'] / 1e6:.0f} MB",
        f"{found['kept']} copies {found['copies_bytes'] / 1e6:.0f} MB",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)

    def measure() -> dict[str, Any]:
        details = {**measure_cost(options), **measure_sharing(options)}
        shares = details["snapshot_bytes"] <= details["changed_bytes"] + (details["kept"] + 1) * SLACK_BYTES
        all_taken = not details["failure"] and details["taken"] >= details["rounds"] and details["kept"] == KEPT
        right = shares and all_taken and details["same_losses"]
        return result(
            NAME, ours=details["ratio"], peer=1.0, bar=BAR, ok=details["ok"], right=right, unit=UNIT, details=details
        )

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
