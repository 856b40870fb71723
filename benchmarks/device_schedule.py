"""Time of a step on a simulated GPU with a clock: how much of the copies and of the server compute leaves exposed.

The copy engine and its threads are the real ones; the GPU is simulated, and so is the server. Copies and kernels take
the time that they would take at F sustained FLOP/s and B bytes/s each way, and the server makes R updates a second. A
step of 32 blocks should take what the slowest of the three takes alone. Beside it stands the order of before: one
stream for both directions, and a wait for each gradient's copy. Nothing about a real GPU is measured here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import Row, arguments, native_file, result, run, table

NAME = "device_schedule"
BAR = "at 4k, 16k and 64k tokens a step, within 5 % of the slowest of compute, copies and server"
UNIT = "times the slowest"
MOST = 1.05

BLOCKS = 32
BLOCK_PARAMETERS = 218_000_000
"""A layer of Llama 3.1 8B."""
FLOP_PER_SECOND = 80e12
BYTES_PER_SECOND = 25e9
UPDATES_PER_SECOND = 5.8e9
"""arXiv 2409.00918: its server at 100 Gb/s."""
SPEED = {4096: 2.0, 16384: 5.0, 65536: 20.0}
"""The GPU's seconds in one of ours, by tokens: the machine's timer is exact to a tenth of a millisecond."""


def simulated(tokens: int, blocks: int, steps: int) -> dict[str, float]:
    """Times in the GPU's seconds: of a step with the engine and in the order of before, and of its parts alone."""
    program = native_file("luwu_device_schedule", ["device"], "the simulated device: install liburing-dev")
    block_bytes = 2 * BLOCK_PARAMETERS
    forward = 2 * BLOCK_PARAMETERS * tokens / FLOP_PER_SECOND
    update = BLOCK_PARAMETERS / UPDATES_PER_SECOND
    settings = (blocks, block_bytes, forward, BYTES_PER_SECOND, update, SPEED[tokens], steps)
    done = subprocess.run([program, *map(str, settings)], capture_output=True, text=True, check=True)
    parts = {
        "compute": 4 * blocks * forward,
        "copies": 2 * blocks * block_bytes / BYTES_PER_SECOND,
        "server": blocks * update,
    }
    return json.loads(done.stdout) | parts


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    over, before = found["over"], found["before"]
    yield (
        f"a step of {', '.join(map(str, over))} tokens on a simulated GPU, {found['blocks']} blocks",
        f"{_times(over)} times the slowest of compute, copies and server",
        f"one stream, a wait for each gradient: {_times(before)}",
    )


def _times(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{figure:.2f}" for figure in figures.values())


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    blocks = options.size(BLOCKS, check=6)
    steps = options.effort(3, quick=1, check=1)
    sizes = options.size((4096, 16384, 65536), check=(4096,))

    def measure() -> dict[str, Any]:
        rows, over, before = [], {}, {}
        for tokens in sizes:
            found = simulated(tokens, blocks, steps)
            least = max(found["compute"], found["copies"], found["server"])
            over[tokens] = found["step_seconds"] / least
            before[tokens] = found["before_seconds"] / least
            idle = 1 - found["compute"] / found["step_seconds"]
            rows.append([
                tokens, found["compute"], found["copies"], found["server"], found["step_seconds"], over[tokens],
                f"{idle:.1%}", before[tokens],
            ])  # fmt: skip
        table(["tokens", "compute s", "copies s", "server s", "step s", "over", "compute idle", "before, over"], rows)
        worst = max(over.values())
        details = {
            "over": over, "before": before, "blocks": blocks, "block_parameters": BLOCK_PARAMETERS,
            "flop_per_second": FLOP_PER_SECOND, "bytes_per_second": BYTES_PER_SECOND,
            "updates_per_second": UPDATES_PER_SECOND, "simulated": True,
        }  # fmt: skip
        return result(
            NAME, ours=worst, peer=max(before.values()), bar=BAR, ok=worst <= MOST, unit=UNIT, details=details
        )

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
