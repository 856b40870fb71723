"""A worker's peak memory against the depth of the model: luwu and FSDP2, two workers each.

Memory is peak PSS over the start and the steps: a page that processes share counts in parts, so the parts add up to
what is used. luwu's server keeps a fixed budget and is shown beside its workers; the budget is less than the parameters
of the smallest model that counts, because a part of the server's memory is shared with workers and would grow until it
is full. The batch is small on purpose: what grows with the depth is the input of each block, which activation
checkpointing keeps on every side.

Large tables are measured apart, over TCP, where a worker has memory of its own: a large embedding beside a head of the
same size must take no more than a small one, because the largest block sets the memory and not their sum. What is there
at once depends on time, so the most of several starts counts, and one start (--quick) does not decide it. Freed memory
goes back to the system at once in this part: tcmalloc may keep the gradient of one table that was freed, with one table
as with two, and that is no memory of a block.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import Options, Row, arguments, result, run, table
from kit.luwu_side import LuwuSide
from kit.processes import Side

NAME = "worker_memory"
BAR = (
    "a worker's peak memory grows less than 3 % from the second model to the deepest (12 to 48 blocks), and less than "
    "3 % from one table of 64 MiB to two"
)
MOST_GROWTH = 0.03
VOCABULARY = 32_768
TOKENS = 16
RANKS = 2
SEQUENCE = 64
HIDDEN = 512
FREED_AT_ONCE = {"TCMALLOC_AGGRESSIVE_DECOMMIT": "1"}
NAMES = ("blocks", "luwu worker MB", "luwu server MB", "luwu all MB", "fsdp2 worker MB", "fsdp2 all MB")


def visit(side: Side) -> None:
    """Start, warm-up and a step under the memory watch."""
    side.wait_ready()
    side.stop()


def measure_depth(layers: int, hidden: int, options: Options) -> list[float]:
    """Measure one row of the table; --quick leaves the peer out, which the bar does not name."""
    settings = {
        "shape": {"layers": layers, "hidden": hidden, "heads": 8, "seq": SEQUENCE}, "rows": 1, "steps": 1, "warm_up": 2,
        "checkpoint": True, "folder": str(options.folder), "memory": "144MiB", "meta": True,
    }  # fmt: skip
    ranks = options.size(RANKS, check=1)
    peer = [0.0, 0.0]
    if not options.quick:
        with Side("fsdp2", "peers/fsdp2_train.py", settings, ranks=ranks, python=options.peer_python()) as fsdp2:
            visit(fsdp2)
        peer = [max(fsdp2.memory.each_bytes) / 1e6, fsdp2.peak_bytes / 1e6]
    if options.only_peer:
        return [layers, 0.0, 0.0, 0.0, *peer]
    with LuwuSide(settings, ranks=ranks) as luwu:
        visit(luwu)
    return [layers, luwu.worker_bytes / 1e6, luwu.server_bytes / 1e6, luwu.peak_bytes / 1e6, *peer]


def measure_tables(tables: int, options: Options) -> float:
    """Peak memory (MB) of a worker over TCP whose model has a large head, and, of two tables, a large embedding."""
    rows = options.size(VOCABULARY, check=256)
    settings = {
        "inputs": rows if tables > 1 else 256, "outputs": rows, "hidden": options.size(HIDDEN, check=64),
        "key": secrets.token_hex(32), "tokens": TOKENS, "steps": 2, "folder": str(options.folder), "memory": "1GiB",
    }  # fmt: skip
    with LuwuSide(settings, program="ours/tables.py", server="ours/tcp_server.py", env=FREED_AT_ONCE) as luwu:
        luwu.wait_ready()
        return float(luwu.stop()[0]["peak_bytes"]) / 1e6


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for row in found["measured"]:
        if row["blocks"] >= 12:
            yield (
                f"a worker's peak memory, {row['blocks']} blocks",
                f"{row['luwu worker MB']:.0f} MB",
                f"FSDP2 {row['fsdp2 worker MB']:.0f} MB",
            )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    depths = options.effort((6, 12, 24, 48), quick=(12, 48), check=(1,))
    hidden = options.size(HIDDEN, check=64)

    def measure() -> dict[str, Any]:
        rows = [measure_depth(layers, hidden, options) for layers in depths]
        table(NAMES, rows)
        shallow, deep = rows[-3 if len(rows) > 2 else 0], rows[-1]
        growth = None if options.only_peer else deep[1] / shallow[1] - 1
        kept = 4 * SEQUENCE * hidden / 1e6
        print(f"each block keeps its input for the backward pass: {kept:.2f} MB")
        starts = options.size(5, quick=1, check=1)
        wanted = () if options.only_peer else (1, 2)
        tables = {number: max(measure_tables(number, options) for _ in range(starts)) for number in wanted}
        for number, found in tables.items():
            print(f"large tables: {number}, worker's peak: {found:.1f} MB")
        measured = [dict(zip(NAMES, row, strict=True)) for row in rows]
        details = {"block_input_mb": kept, "tables_mb": tables, "measured": measured}
        return result(
            NAME, ours=growth, peer=deep[4] / shallow[4] - 1 if shallow[4] else None, bar=BAR,
            ok=growth is not None and growth < MOST_GROWTH and tables[2] / tables[1] - 1 < MOST_GROWTH,
            unit=f"growth from {shallow[0]} to {deep[0]} blocks", details=details,
        )  # fmt: skip

    return run(NAME, BAR, "growth", measure, options)


if __name__ == "__main__":
    sys.exit(main())
