"""A worker of fabric_local: copies its private gradient into its registered buffer, pushes it, reads the mean.

Times are the machine's monotonic clock, which all processes share. Settings: elements, run.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import numpy
import torch
from kit.child import serve, settings, take_stdout

from luwu import _native

START_SECONDS = 30.0
PAGE_ELEMENTS = 1024  # float32


def join(run: Path, rank: int) -> _native.Endpoint:
    """Maps the aggregator's memory once it is there."""
    announcement = run / "aggregator.json"
    deadline = time.monotonic() + START_SECONDS
    while not announcement.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no aggregator announced itself in {run} within {START_SECONDS:.0f} s")
        time.sleep(0.01)
    found = json.loads(announcement.read_text())
    files = [os.open(f"/proc/{found['pid']}/fd/{file}", os.O_RDWR) for file in found["files"][rank]]
    try:
        return _native.Endpoint(files, rank)
    finally:
        for file in files:
            os.close(file)


def start_together() -> float:
    """Sleeps to the next tenth of a second that is not too near, as every worker does, and returns the time.

    Takes the place of gloo's barrier: what is measured does not contain waiting for a worker that was told later.
    """
    start = math.ceil(10 * (time.monotonic() + 0.02)) / 10
    time.sleep(start - time.monotonic())
    return start


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    endpoint = join(Path(wanted["run"]), rank)
    elements = wanted["elements"]
    registered = endpoint.register(4 * elements).view(numpy.float32)
    window = torch.frombuffer(endpoint.window, dtype=torch.uint8)
    gradient = numpy.full(elements, rank + 1.0, dtype=numpy.float32)
    private = torch.empty(elements)

    def sample() -> dict[str, float]:
        started = start_together()
        _native.copy_past_cache(registered, gradient)
        pushed = endpoint.push(0, 0)
        pulled = endpoint.pull(0)
        endpoint.wait(pushed)
        pushed_at = time.monotonic()
        offset = endpoint.wait(pulled)
        result = window[offset : offset + 4 * elements].view(torch.float32)
        touched = float(result[::PAGE_ELEMENTS].sum())
        received_at = time.monotonic()
        private.copy_(result)
        copied = time.monotonic() - started
        expected = (workers + 1) / 2
        if abs(touched / len(result[::PAGE_ELEMENTS]) - expected) > 1e-5 or float(result[-1]) != expected:
            raise RuntimeError(f"the mean is {float(result[-1])}, expected {expected}")
        endpoint.release(0)
        seconds = received_at - started
        return {"seconds": seconds, "seconds_copied_out": copied, "pushed_at": pushed_at, "received_at": received_at}

    sample()
    serve(replies, sample)


if __name__ == "__main__":
    main()
