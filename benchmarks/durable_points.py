"""200 SIGKILLs of servers that put every fifth step on the disk; and the time of a step with commit points.

After each kill the run resumes at its last commit point and makes the steps after it again, with the same losses. In
the end parameters, states and files are those of a run that nobody disturbed. A commit point is answered before it is
on the disk, and the step after it is answered after that. So a server that dies in between is at the one before.

The times are those of GPTs whose states fit into memory, one worker: each step's, with a commit point every ten steps,
with one at every step, and in plain torch, in turns. With the larger model and its short texts the disk needs longer
for a commit point than a step takes. On a machine where plain torch's own steps differ by more than the bar, a missed
bar decides nothing.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # One thread for each process, before numpy and torch start more; their compiled files are kept, as where they are
    # installed.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import torch
from kit.common import Row, all_of, arguments, result, run, table
from kit.kills import work
from kit.kills.scenarios import Plan, do
from kit.model import ADAMW, batches, build, gpt
from torch import nn

import luwu

NAME = "durable_points"
BAR = "200 kills in the full run, 0 wrong; 99th percentile of a step's time at most 1.25 of the median"
UNIT = "of the median step time, 99th percentile with a commit point every ten steps"
COMMIT_EVERY = 5
MOST = 1.25
LONGER = ", where the disk needs longer for a commit point than a step takes"

FULL: Plan = {"embedded server": 80, "TCP: server": 40, "2 servers, TCP: server": 40, "UDP: server": 40}
QUICK: Plan = {"embedded server": 8, "2 servers, TCP: server": 3}
CHECK: Plan = {"embedded server": 1, "TCP: server": 1}

TIMED = "10 steps"
TORCH = "plain torch, no disk"


@dataclass(frozen=True)
class Timed:
    """A model whose steps are timed: its shape, texts in a batch, and the server's memory."""

    shape: Mapping[str, int]
    rows: int
    memory: str


USUAL = Timed({"layers": 4, "hidden": 256, "heads": 4, "seq": 128}, 4, "1GiB")
DISK_IS_SLOWER = Timed({"layers": 6, "hidden": 768, "heads": 12, "seq": 32}, 1, "3GiB")


def step_seconds(folder: Path, timed: Timed, durable: str, steps: int, warm: int) -> list[float]:
    """Train for `steps` steps after `warm` others, and return the time of each."""
    with luwu.open(folder, durable=durable, memory=timed.memory) as session:
        model = luwu.parallelize(build(timed.shape), session, blocks=[gpt.Block])
        taken = timed_steps(model, luwu.AdamW(model, **ADAMW), timed, warm + steps)
    return taken[warm:]


def torch_step_seconds(timed: Timed, steps: int, warm: int) -> list[float]:
    """Train with plain torch, and return what `step_seconds` does: the machine's own share of the differences."""
    model = build(timed.shape)
    return timed_steps(model, torch.optim.AdamW(model.parameters(), **ADAMW), timed, warm + steps)[warm:]


def timed_steps(model: nn.Module, optimizer: Any, timed: Timed, steps: int) -> list[float]:
    """Train a model, and return the time of each step, in seconds."""
    taken = []
    found = batches(timed.rows, timed.shape["seq"])
    for _ in range(steps):
        began = time.perf_counter()
        model(*next(found)).backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(time.perf_counter() - began)
    return taken


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return the median of step times, in seconds, and the 99th percentile divided by it."""
    median = statistics.median(seconds)
    return {"median_seconds": median, "p99": statistics.quantiles(seconds, n=100)[98] / median}


def measured(timed: Timed, folder: Path, steps: int, turns: int) -> dict[str, dict[str, float]]:
    """Time steps with commit points every ten and at each, and plain torch's, in turns; print what was found."""
    taken: dict[str, list[float]] = {TIMED: [], "step": [], TORCH: []}
    warm = min(20, steps)
    for _ in range(turns):
        for durable in (TIMED, "step"):
            with tempfile.TemporaryDirectory(dir=folder, prefix="luwu-") as name:
                taken[durable] += step_seconds(Path(name) / "run", timed, durable, steps, warm)
        taken[TORCH] += torch_step_seconds(timed, steps, warm)
    times = {durable: percentiles(seconds) for durable, seconds in taken.items()}
    table(["commit points", "median ms", "p99 / median"],
          [[durable, 1000 * one["median_seconds"], one["p99"]] for durable, one in times.items()])  # fmt: skip
    return times


def is_even(each: Iterable[Mapping[str, Mapping[str, float]]]) -> bool | None:
    """Return True where the 99th percentiles keep the bar; None where plain torch's own does not, either."""
    missed = [times for times in each if times[TIMED]["p99"] > MOST]
    if not missed:
        return True
    return None if all(times[TORCH]["p99"] > MOST for times in missed) else False


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    bits = "the undisturbed run's bits" if found["bit_identical"] else "**other bits**"
    question = f"{found['kills']} kills (SIGKILL) of servers with a commit point every {found['commit_every']} steps"
    yield question, f"{len(found['wrong'])} not at the last commit point; {bits}", "-"
    for name, where in (("times", ""), ("times_where_the_disk_is_slower", LONGER)):
        if name not in found:
            continue
        peers = [f"each step a commit point: {found[name]['step']['p99']:.2f}"]
        if TORCH in found[name]:
            peers.append(f"{TORCH}: {found[name][TORCH]['p99']:.2f}")
        ours = found[name][TIMED]
        yield (
            f"time of a step with a commit point every ten: 99th percentile over the median{where}",
            f"{ours['p99']:.2f} (median {1000 * ours['median_seconds']:.0f} ms)",
            "; ".join(peers),
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    plan = options.size(FULL, quick=QUICK, check=CHECK)
    slow_disk = options.size(DISK_IS_SLOWER, check=USUAL)
    steps, turns = options.size((200, 3), quick=(40, 1), check=(4, 1))
    os.environ["LUWU_JOB_KEY"] = work.KEY

    def measure() -> dict[str, Any]:
        done = [do(name, kills, options.folder, COMMIT_EVERY) for name, kills in plan.items()]
        table(["scenario", "kills", "wrong", "resumes"], [[s.name, s.kills, len(s.wrong), s.resumes] for s in done])
        times = measured(USUAL, options.folder, steps, turns)
        slower = measured(slow_disk, options.folder, max(steps // 2, 4), turns)
        kills, wrong = sum(one.kills for one in done), [f"{one.name}: {word}" for one in done for word in one.wrong]
        details = {
            "kills": kills, "resumes": sum(one.resumes for one in done), "commit_every": COMMIT_EVERY, "wrong": wrong,
            "bit_identical": not wrong, "times": times, "times_where_the_disk_is_slower": slower,
        }  # fmt: skip
        enough = all_of(kills == sum(plan.values()), is_even((times, slower)))
        return result(
            NAME, ours=times[TIMED]["p99"], peer=times["step"]["p99"], bar=BAR, ok=enough, right=not wrong, unit=UNIT,
            details=details,
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
