"""The optimizer out of core against the disk's own limit, which fio measures in the same run.

bf16 parameters with fp32 master, m, v: 12 bytes read and 14 written per parameter. fio moves requests of the same size
in the same mix. DeepSpeed's NVMe optimizer stands beside it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from kit.common import NotInstalledError, Row, arguments, result, run, table
from kit.disk_limit import DiskLimit
from kit.processes import Side
from kit.sampling import Bar, compare, in_turn

NAME = "optimizer_disk"
BAR = "at least 90 % of the disk's limit (fio, same request size and read:write mix)"
BLOCK_ELEMENTS = 12 * 512 * 512
READ_SHARE = 12 / 26
LEAST = Bar("luwu", "fio", 0.9)


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    moved, updated = found["bytes_per_second"], found["million_parameters_per_second"]
    yield (
        "AdamW out of core",
        f"{updated['luwu']:.0f} Mparam/s; {moved['luwu'] / 1e6:.0f} MB/s",
        f"best of fio {moved['fio'] / 1e6:.0f} MB/s; DeepSpeed {updated['deepspeed']:.0f} Mparam/s",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    blocks, memory = options.size((48, 128 << 20), check=(2, 64 << 20))
    steps = options.effort(3, quick=1, check=1)
    settings = {
        "blocks": blocks, "block_elements": BLOCK_ELEMENTS, "memory_bytes": memory, "steps": steps,
        "folder": str(options.folder), "rows": 1, "shape": {"layers": blocks, "hidden": 512, "heads": 8, "seq": 16},
    }  # fmt: skip

    def measure() -> dict[str, Any]:
        with ExitStack() as stack:
            # Sides are killed at the end: what they made is this process's to remove.
            stores = stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-"))
            wanted = {**settings, "folder": stores}
            rates: dict[str, list[float]] = {"luwu": [], "deepspeed": []}
            sides: dict[str, Side] = {}
            notes: dict[str, Any] = {}
            if not options.only_peer:
                sides["luwu"] = stack.enter_context(Side("luwu", "ours/optimizer_disk.py", wanted))
            if not options.quick:  # no bar names it
                try:
                    python = options.peer_python("deepspeed")
                    sides["deepspeed"] = stack.enter_context(
                        Side("deepspeed", "peers/deepspeed_optimizer_nvme.py", wanted, python=python)
                    )
                except NotInstalledError as error:
                    notes["deepspeed"] = str(error)
                    options.left_out.append(f"DeepSpeed: {error}")
                    print(f"DeepSpeed left out: {error}")
            for side in sides.values():
                side.wait_ready()
            measures: dict[str, Callable[[], float]] = {}
            try:
                limit = stack.enter_context(
                    DiskLimit(
                        options.folder, read_share=READ_SHARE, file_bytes=14 * blocks * BLOCK_ELEMENTS,
                        seconds=options.effort(3.0, quick=1.0, check=0.2),
                    )
                )  # fmt: skip
                measures["fio"], notes["fio"] = limit.sample, limit.settings
            except NotInstalledError as error:
                options.leave_out("fio", error)

            def bytes_per_second(name: str) -> float:
                sample = sides[name].sample()[0]
                rates[name].append(sample["parameters_per_second"])
                return float(sample.get("bytes_per_second", 30 * sample["parameters_per_second"]))

            measures |= {name: lambda name=name: bytes_per_second(name) for name in sides}
            bars = [LEAST] if {"luwu", "fio"} <= measures.keys() else []
            compared = compare(options, in_turn(measures), bars, rounds=max(3, options.repeats))
        speed = compared.medians
        millions = {name: statistics.median(found) / 1e6 for name, found in rates.items() if found}
        rows = [
            [name, value / 1e6, millions.get(name, value / 26e6), value / speed["fio"] if "fio" in speed else "-"]
            for name, value in speed.items()
        ]
        table(["side", "MB/s", "Mparam/s", "of the limit"], rows)
        details = {
            "bytes_per_second": speed, "million_parameters_per_second": millions, **notes,
            "compared": compared.details(),
        }  # fmt: skip
        return result(
            NAME, ours=speed.get("luwu"), peer=speed.get("fio"), bar=BAR, ok=compared.ok if bars else False,
            unit="bytes/s", details=details,
        )  # fmt: skip

    return run(NAME, BAR, "bytes/s", measure, options)


if __name__ == "__main__":
    sys.exit(main())
