"""Bytes that training writes to the store, a parameter and step, for every choice of commit points; counted, not timed.

A GPT in bfloat16 with AdamW, whose record of a parameter has 14 bytes. Where parameters and states fit into memory,
only commit points write. Where they do not, each step writes what memory does not keep, and a commit point everything:
so a flush, which writes what memory alone has, must write exactly the rest. The parameters have the same bits in all.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from kit.common import Row, arguments, result, run, table
from kit.kills.work import digest
from kit.model import ADAMW, batches, build, gpt

import luwu

NAME = "disk_bytes"
RECORD_BYTES = 14
SLACK = 0.02
BAR = f"{RECORD_BYTES} bytes at every step; at most {RECORD_BYTES}/k + 2 % at k steps; exactly what is evicted else"
UNIT = "bytes a parameter and step, a commit point every ten steps, all in memory"
EVERY = {"step": 1, "2 steps": 2, "5 steps": 5, "10 steps": 10}
STEPS = 10
AMPLE = "2GiB"


class Written(NamedTuple):
    """Bytes that some steps have written; the parameters, their number and digest; the memory that all takes."""

    total: int
    parameters: int
    digest: str
    whole_memory: int


def train(folder: Path, shape: dict[str, int], durable: str, memory: str | int, steps: int) -> Written:
    """Make some steps, and count what they have written once the last of them is on the disk."""
    with luwu.open(folder, durable=durable, memory=memory) as session:
        model = luwu.parallelize(build(shape), session, blocks=[gpt.Block], dtype=torch.bfloat16)
        optimizer = luwu.AdamW(model, **ADAMW)
        server, found = session.server, batches(1, shape["seq"])
        assert server is not None
        before = int(server.stats()["bytes_written"])
        parameters = sum(parameter.numel() for parameter in model.parameters())
        for _ in range(steps):
            model(*next(found)).backward()
            optimizer.step()
            optimizer.zero_grad()
        found_digest = digest(model)
        session.snapshot()  # puts the last step on the disk, as the end does
        stats = server.stats()
    return Written(int(stats["bytes_written"]) - before, parameters, found_digest, int(stats["planned_bytes"]))


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    each = {durable: f"{one:.2f}" for durable, one in found["in_memory"].items()}
    yield (
        "bytes written to the store, a parameter and step, bfloat16; all in memory",
        f"a commit point every ten steps: {each['10 steps']}; every two: {each['2 steps']}",
        f"each step: {each['step']}",
    )
    some = found["in_part"]
    yield (
        f"the same, {100 * some['kept']:.0f} % of it in memory",
        f"a commit point every ten steps: {some['bytes']:.2f}",
        f"what is evicted, and a tenth of the rest: {some['expected']:.2f}",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    layers, hidden = options.size((8, 512), check=(4, 512))
    shape = {"layers": layers, "hidden": hidden, "heads": 8, "seq": 8}

    def count(durable: str, memory: str | int, steps: int = STEPS) -> Written:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder:
            return train(Path(folder) / "run", shape, durable, memory, steps)

    def measure() -> dict[str, Any]:
        found = {durable: count(durable, AMPLE) for durable in EVERY}
        parameters = found["step"].parameters
        in_memory = {durable: one.total / parameters / STEPS for durable, one in found.items()}
        full, uneven = divmod(found["step"].total, STEPS)
        small = found["step"].whole_memory  # with commit points gradients are kept, too
        some, stopped, half = count("10 steps", small), count("stop", small), count("stop", small, STEPS // 2)
        evicted, uneven_evicted = divmod(stopped.total - half.total, STEPS - STEPS // 2)
        expected = (STEPS - 1) * evicted + full
        in_part = {
            "kept": 1 - evicted / full,
            "bytes": some.total / parameters / STEPS,
            "expected": expected / parameters / STEPS,
        }
        table(["durable", "bytes a parameter and step"], [[name, each] for name, each in in_memory.items()])
        print(f"{100 * in_part['kept']:.0f} % in memory: {in_part['bytes']:.3f}, expected {in_part['expected']:.3f}")
        exact = {
            "each step alike": uneven == 0,
            "what fits is not written between commit points": all(
                one.total == full * STEPS // EVERY[durable] for durable, one in found.items()
            ),
            "what is evicted is the same in each step": uneven_evicted == 0 and 0 < evicted < full,
            "the end writes exactly the rest": half.total == STEPS // 2 * evicted + full - evicted,
            "so do commit points": some.total == expected,
            "all have the same bits": {one.digest for one in (*found.values(), some, stopped)}
            == {found["step"].digest},
        }
        for name, holds in exact.items():
            print(f"{'yes' if holds else 'NO '}  {name}")
        small_enough = all(each <= RECORD_BYTES / EVERY[durable] * (1 + SLACK) for durable, each in in_memory.items())
        return result(
            NAME, ours=in_memory["10 steps"], peer=in_memory["step"], bar=BAR, ok=small_enough, unit=UNIT,
            right=all(exact.values()),
            details={"in_memory": in_memory, "in_part": in_part, "exact": exact, "parameters": parameters},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
