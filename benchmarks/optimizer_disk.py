"""The optimizer out of core against the disk's own limit, which fio measures in the same run.

bf16 parameters with fp32 master, m, v: 12 bytes read and 14 written per parameter. fio moves requests of the same size
in the same mix. DeepSpeed's NVMe optimizer stands beside it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from typing import Any

from common import BenchmarkError, arguments, median_alternating, require_peers, result, run, table
from disk_limit import DiskLimit
from processes import Side

NAME = "optimizer_disk"
BAR = "at least 90 % of the disk's limit (fio, same request size and read:write mix)"
BLOCK_ELEMENTS = 12 * 512 * 512
READ_SHARE = 12 / 26


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    blocks, memory, steps = (12, 64 << 20, 2) if options.quick else (48, 128 << 20, 3)
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
            sides, notes = {}, {}
            if not options.only_peer:
                sides["luwu"] = stack.enter_context(Side("luwu", "ours/optimizer_disk.py", wanted))
            try:
                sides["deepspeed"] = stack.enter_context(
                    Side("deepspeed", "peers/deepspeed_optimizer_nvme.py", wanted, python=require_peers())
                )
            except BenchmarkError as error:
                notes["deepspeed"] = str(error)
                print(f"DeepSpeed left out: {error}")
            for side in sides.values():
                side.wait_ready()
            limit = stack.enter_context(
                DiskLimit(
                    options.folder, read_share=READ_SHARE,
                    file_bytes=14 * blocks * BLOCK_ELEMENTS, seconds=1.0 if options.quick else 3.0,
                )
            )  # fmt: skip

            def bytes_per_second(name: str) -> float:
                sample = sides[name].sample()[0]
                rates[name].append(sample["parameters_per_second"])
                return float(sample.get("bytes_per_second", 30 * sample["parameters_per_second"]))

            measures = {"fio": limit.sample} | {name: lambda name=name: bytes_per_second(name) for name in sides}
            speed = median_alternating(measures, options.repeats)
        millions = {name: statistics.median(found) / 1e6 for name, found in rates.items() if found}
        rows = [
            [name, value / 1e6, millions.get(name, value / 26e6), value / speed["fio"]] for name, value in speed.items()
        ]
        table(["side", "MB/s", "Mparam/s", "of the limit"], rows)
        ours, peer = speed.get("luwu"), speed["fio"]
        details = {"bytes_per_second": speed, "million_parameters_per_second": millions, "fio": limit.settings, **notes}
        ok = ours is not None and ours >= 0.9 * peer
        return result(NAME, ours=ours, peer=peer, bar=BAR, ok=ok, unit="bytes/s", details=details)

    return run(NAME, BAR, "bytes/s", measure)


if __name__ == "__main__":
    sys.exit(main())
