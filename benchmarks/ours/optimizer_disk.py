"""luwu's optimizer out of core without a model: whole steps of pushes alone, states streaming through a small budget.

Settings: blocks, block_elements, steps, memory_bytes, folder; optimizer (adamw, or adamw8bit with states of 8 bits)
and pulls (no: whether every block is pulled before its push, as in a backward pass). bf16 gradients and parameters. A
sample is the mean of `steps` steps; it ends when all of them are on the disk, and counts what they read and wrote.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from typing import Any

import numpy
from kit.child import serve, settings, take_stdout

from luwu import _native
from luwu.core.manifest import DEFAULT_CHUNK_ELEMENTS

PATIENCE_SECONDS = 600.0
ADAMW = [(3e-4, 0.9, 0.999, 1e-8, 0.1)]
BF16_BYTES = 2


class Optimizer:
    """A server and one endpoint in this process; gradients lie ready in two buffers that take turns."""

    def __init__(self, wanted: dict[str, Any], folder: str) -> None:
        self.blocks, self.elements = wanted["blocks"], wanted["block_elements"]
        self._pulls = wanted.get("pulls", False)
        specs = [_native.BlockSpec(f"block{index}", self.elements, dtype="bfloat16") for index in range(self.blocks)]
        self._server = _native.ShmServer(
            [folder], uuid.uuid4().hex, True, specs, DEFAULT_CHUNK_ELEMENTS,
            wanted.get("optimizer", "adamw"), wanted["memory_bytes"], 1, len(os.sched_getaffinity(0)),
        )  # fmt: skip
        self._endpoint = _native.Endpoint(self._server.files_of(0), 0)
        self._buffer_bytes = self.elements * BF16_BYTES
        arena = numpy.asarray(self._endpoint.register(2 * self._buffer_bytes))
        values = numpy.random.default_rng(1).standard_normal(self.elements, dtype=numpy.float32) * 0.02
        arena.view(numpy.float32)[:] = values
        for block in range(self.blocks):
            self._endpoint.wait(self._endpoint.initialise(block, 0))
        self._endpoint.wait(self._endpoint.finish_initialise())
        gradient = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)  # cut to bf16
        arena.view(numpy.uint16).reshape(2, -1)[:] = gradient

    def step(self) -> None:
        """Pushes every block's gradient, the last block first, and commits."""
        endpoint = self._endpoint
        endpoint.begin(ADAMW)
        pushed: list[int] = []
        pulled = [endpoint.pull(self.blocks - 1)] if self._pulls else []
        for index in range(self.blocks):
            block = self.blocks - 1 - index
            if self._pulls and block > 0:
                pulled.append(endpoint.pull(block - 1))
            if index >= 2:
                endpoint.wait(pushed[index - 2])
            if self._pulls:
                endpoint.wait(pulled[index])
            pushed.append(endpoint.push(block, index % 2 * self._buffer_bytes))
            if self._pulls:
                endpoint.release(block)
        if endpoint.wait(endpoint.commit()) != 1:
            raise RuntimeError("the step was rolled back")

    def timed(self, steps: int) -> dict[str, float]:
        """Seconds of a step, parameters and store bytes (read, written) per second."""
        before = self._server.stats()
        started = time.perf_counter()
        for _ in range(steps):
            self.step()
        if not self._server.make_durable(PATIENCE_SECONDS):
            raise RuntimeError(f"the steps were not on the disk after {PATIENCE_SECONDS:.0f} s")
        seconds = time.perf_counter() - started
        after = self._server.stats()
        read, written = (after[name] - before[name] for name in ("bytes_read", "bytes_written"))
        return {
            "seconds": seconds / steps,
            "parameters_per_second": self.blocks * self.elements * steps / seconds,
            "bytes_per_second": (read + written) / seconds,
            "read_share": read / (read + written),
            "bytes_per_parameter": (read + written) / (self.blocks * self.elements * steps),
        }


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    with tempfile.TemporaryDirectory(dir=wanted["folder"], prefix="luwu-") as folder:
        optimizer = Optimizer(wanted, folder)
        optimizer.timed(2)
        serve(replies, lambda: optimizer.timed(wanted["steps"]))


if __name__ == "__main__":
    main()
