"""AdamW where all states fit into memory, a commit point every ten steps: the server against the kernel alone.

The server updates a GPT in bfloat16 after a real backward, while nobody pulls: its time is from `optimizer.step()`
until every parameter is updated, whatever commit points write meanwhile. The kernel alone, torch.compile and
DeepSpeedCPUAdam update as many parameters as one array. Whole steps stand against DeepSpeed's ZeRO-3 with
offload_optimizer cpu: the same model in float32, one worker, no activation checkpointing on either side. A sample is
ten steps with a commit point in the middle, so that its writes are in it. The bar is for a batch so small that the
optimizer sets the pace; a larger one is shown beside.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from kit.common import NotInstalledError, Options, Row, all_of, arguments, result, run, table
from kit.luwu_side import LuwuSide
from kit.model import ADAMW, batches, build, gpt
from kit.processes import Side
from kit.sampling import Bar, Comparison, compare, in_turn
from kit.update_sides import COMPILED, OURS, PAUSE_SECONDS, Sides, take_each, timed

import luwu

NAME = "optimizer_resident"
BAR = "at least 0.95 of the kernel alone; a whole step 1.5 times as fast as with DeepSpeed's offload to memory"
THREADS = 2
EVERY = 10
DURABLE = f"{EVERY} steps"
SMALL, LARGE = 32, 512
"""Tokens of a step: so few that the optimizer sets the pace, as beside a GPU; and as many that the processor does."""
RESIDENT, KERNEL, DEEPSPEED = "luwu's server", "kernel alone", "DeepSpeed"
UPDATE = Bar(KERNEL, RESIDENT, 0.95)
STEP = Bar("luwu", DEEPSPEED, 1.5)
POLL_SECONDS = 0.0005


class Resident:
    """A model whose parameters and states the server keeps in memory."""

    def __init__(self, folder: Path, shape: dict[str, int], memory: int) -> None:
        self.session = luwu.open(folder, memory=memory, durable=DURABLE)
        self._model = luwu.parallelize(build(shape), self.session, blocks=[gpt.Block], dtype=torch.bfloat16)
        self._optimizer = luwu.AdamW(self._model, **ADAMW)
        self._batches = batches(1, shape["seq"])
        self.elements = sum(parameter.numel() for parameter in self._model.parameters())

    def update_seconds(self) -> float:
        """Make a step; return the seconds from the end of its backward until all parameters are updated."""
        self._model(*next(self._batches)).backward()
        time.sleep(PAUSE_SECONDS)
        until = self._updated() + self.elements
        started = time.perf_counter()
        self._optimizer.step()
        while self._updated() < until:
            time.sleep(POLL_SECONDS)
        seconds = time.perf_counter() - started
        self._optimizer.zero_grad()
        return seconds

    def _updated(self) -> int:
        assert self.session.server is not None
        return int(self.session.server.stats()["elements_updated"])


def measure_updates(options: Options, shape: dict[str, int], memory: int) -> tuple[Comparison, int]:
    """Seconds of an update of all parameters by each side, and the number of parameters."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-")))
        resident = Resident(folder / "run", shape, memory)
        stack.callback(resident.session.close)
        sides = Sides(resident.elements, options.size("inductor", check="eager"))
        measures = {
            RESIDENT: resident.update_seconds,
            KERNEL: timed(sides.luwu(THREADS)[OURS]),
            COMPILED: timed(sides.torch_compile(THREADS)[COMPILED]),
        }
        try:
            wanted = {"elements": resident.elements, "threads": THREADS}
            python = options.peer_python("deepspeed")
            adam = stack.enter_context(
                Side(DEEPSPEED, "peers/deepspeed_cpu_adam.py", wanted, threads=THREADS, python=python)
            )
            adam.wait_ready()
            measures["DeepSpeedCPUAdam"] = lambda: float(adam.sample()[0]["seconds"])
        except NotInstalledError as error:
            options.leave_out("DeepSpeed", error)

        def take_round() -> dict[str, float]:
            return take_each(measures, measures)

        for _ in range(options.effort(2, check=1)):  # they compile and touch memory
            take_round()
        compared = compare(options, take_round, [UPDATE], rounds=max(21, options.repeats), family=2, share=0.4)
    return compared, resident.elements


def measure_steps(options: Options, shape: dict[str, int], tokens: int, memory: int, bars: list[Bar]) -> Comparison:
    """Tokens a second of whole steps, here and with DeepSpeed. A commit point is in the middle of each sample."""
    settings = {
        "shape": {**shape, "seq": tokens}, "rows": 1, "steps": EVERY, "warm_up": EVERY + EVERY // 2, "dtype": "float32",
        "folder": str(options.folder),
    }  # fmt: skip
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        try:
            python = options.peer_python("deepspeed")
            sides[DEEPSPEED] = stack.enter_context(
                Side(DEEPSPEED, "peers/deepspeed_train.py", {**settings, "offload": "cpu"}, python=python)
            )
        except NotInstalledError as error:
            options.leave_out("DeepSpeed", error)
        ours = {**settings, "checkpoint": False, "memory": memory, "durable": DURABLE, "wait": "answer"}
        sides["luwu"] = stack.enter_context(LuwuSide(ours))
        for side in sides.values():
            side.wait_ready()
        take_round = in_turn(
            {name: lambda side=side: float(side.sample()[0]["tokens_per_second"]) for name, side in sides.items()}
        )
        bars = bars if DEEPSPEED in sides else []
        compared = compare(options, take_round, bars, rounds=max(3, options.repeats), family=2, share=0.5)
        for side in sides.values():
            side.stop()
    return compared


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    rate = {name: f"{1e-9 * each:.2f}" for name, each in found["parameters_per_second"].items()}
    yield (
        "AdamW where all states fit into memory, a commit point every ten steps",
        f"{rate[RESIDENT]} Gparam/s",
        ", ".join(f"{name} {each}" for name, each in rate.items() if name != RESIDENT),
    )
    for number, speed in found["tokens_per_second"].items():
        yield (
            f"the same, whole steps of {number} tokens, {found['million_parameters']:.0f}M parameters in float32",
            f"{speed['luwu']:.0f} tokens/s",
            f"DeepSpeed ZeRO-3, offload to memory: {speed[DEEPSPEED]:.0f}",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    layers, hidden = options.size((20, 512), check=(2, 64))
    shape, memory = {"layers": layers, "hidden": hidden, "heads": 8}, options.size(4 << 30, check=64 << 20)

    def measure() -> dict[str, Any]:
        updates, elements = measure_updates(options, {**shape, "seq": SMALL}, memory)
        steps = measure_steps(options, shape, SMALL, memory, [STEP])
        tokens = {SMALL: steps.medians}
        if not options.quick:  # no bar names it
            tokens[LARGE] = measure_steps(options, shape, LARGE, memory, []).medians
        per_second = {name: elements / seconds for name, seconds in updates.medians.items()}
        table(["side", "ms", "Gparam/s"],
              [[name, 1e3 * each, 1e-9 * per_second[name]] for name, each in updates.medians.items()])  # fmt: skip
        table(["tokens a step", "side", "tokens/s"],
              [[number, *row] for number, found in tokens.items() for row in found.items()])  # fmt: skip
        details = {
            "parameters_per_second": per_second, "tokens_per_second": tokens,
            "million_parameters": elements / 1e6, "updates": updates.details(), "steps": steps.details(),
        }  # fmt: skip
        return result(
            NAME, ours=per_second[RESIDENT], peer=per_second[KERNEL], ratio=updates.ratio(UPDATE), bar=BAR,
            ok=all_of(updates.ok, steps.ok), unit="parameters/s", details=details,
        )  # fmt: skip

    return run(NAME, BAR, "parameters/s", measure, options)


if __name__ == "__main__":
    sys.exit(main())
