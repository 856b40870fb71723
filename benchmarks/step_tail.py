"""The tail of a step under the next forward: the pause between backward and forward, and the time of a step.

A GPT in float32 with AdamW, out of core, whose batch is so small that the disk sets the pace. Steps that wait until
they are on the disk, as every step did before they were answered when decided, take turns with steps that do not. The
pause is the time from backward's end until the next forward's first block has its parameters.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from kit.common import Row, arguments, result, run, table
from kit.kills.work import digest
from kit.model import ADAMW, batches, build, gpt
from kit.sampling import Bar, compare

import luwu

NAME = "step_tail"
BAR = "out of core: the pause after backward under 10 % of what it is with a wait for the disk; a step takes less time"
UNIT = "share of the pause with a wait for the disk"
PAUSE = Bar("pause", "pause_durable", 0.1, at_least=False)
STEP = Bar("step", "step_durable", 1.0, at_least=False)
RECORD_BYTES = 12

Wait = Literal["answer", "durable"]


class Steps:
    """A model whose steps are timed: seconds of the pause after backward, and of the whole step."""

    def __init__(self, folder: Path, shape: dict[str, int], memory: int) -> None:
        self.session = luwu.open(folder, memory=memory)
        self._model = luwu.parallelize(build(shape), self.session, blocks=[gpt.Block])
        self._optimizer = luwu.AdamW(self._model, **ADAMW)
        self._batches = batches(1, shape["seq"])
        self._forward_begins = 0.0
        first = next(module for module in self._model.modules() if isinstance(module, gpt.Block))
        first.register_forward_pre_hook(self._note_forward)  # after the one that pulls the block

    def _note_forward(self, *_: object) -> None:
        self._forward_begins = time.perf_counter()

    def take(self, count: int, wait: Wait) -> tuple[float, float]:
        """Make `count` steps and the forward of another one; return the medians of the pauses and of the steps."""
        pauses, steps = [], []
        loss = self._model(*next(self._batches))
        for _ in range(count):
            began = self._forward_begins
            loss.backward()
            ended = time.perf_counter()
            self._optimizer.step(wait=wait)
            self._optimizer.zero_grad()
            loss = self._model(*next(self._batches))
            pauses.append(self._forward_begins - ended)
            steps.append(self._forward_begins - began)
        loss.backward()
        self._optimizer.step(wait="durable")  # nothing is left for who comes next
        self._optimizer.zero_grad()
        return statistics.median(pauses), statistics.median(steps)

    def digest(self) -> str:
        """Return a digest of the parameters."""
        return digest(self._model)

    def close(self) -> None:
        """Ends the server."""
        self.session.close()


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    medians = found["medians"]
    yield (
        f"pause between backward and the next forward, {found['over_budget']:.1f} times the budget on disk",
        f"{1e3 * medians['pause']:.0f} ms; a step {medians['step']:.2f} s",
        f"with a wait for the disk: {1e3 * medians['pause_durable']:.0f} ms; {medians['step_durable']:.2f} s",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    layers, hidden = options.size((24, 768), check=(4, 256))
    count = options.effort(3, quick=2, check=1)
    shape = {"layers": layers, "hidden": hidden, "heads": 8, "seq": 32}
    records = RECORD_BYTES * layers * 12 * hidden * hidden
    memory, little = options.size((768 << 20, 192 << 20), check=(40 << 20, 40 << 20))

    def same_bits(folder: Path) -> bool:
        digests = set()
        for wait in ("answer", "durable"):
            side = Steps(folder / wait, {**shape, "layers": 4}, little)
            side.take(3, wait)
            digests.add(side.digest())
            side.close()
        return len(digests) == 1

    def measure() -> dict[str, Any]:
        samples = []
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder:
            side = Steps(Path(folder) / "run", shape, memory)
            side.take(count, "answer")

            def take_round() -> dict[str, float]:
                pause, step = side.take(count, "answer")
                pause_durable, step_durable = side.take(count, "durable")
                sample = {"pause": pause, "pause_durable": pause_durable, "step": step, "step_durable": step_durable}
                samples.append(sample)
                return sample

            compared = compare(options, take_round, [PAUSE, STEP], rounds=max(5, options.repeats))
            side.close()
            equal = same_bits(Path(folder))
        table(list(samples[0]), [list(sample.values()) for sample in samples])
        print(f"the same bits with both: {'yes' if equal else 'NO'}")
        details = {
            "samples": samples, "medians": compared.medians, "over_budget": records / memory, "same_bits": equal,
            "budget_bytes": memory, "compared": compared.details(),
        }  # fmt: skip
        return result(
            NAME, ours=compared.ratio(PAUSE), peer=1.0, bar=BAR, ok=compared.ok, right=equal, unit=UNIT,
            details=details,
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
