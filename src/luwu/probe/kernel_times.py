"""Requests to the processes that time a model's kernels, and their answers."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from luwu.core.errors import LuwuError
from luwu.launch.processes import worker_environment
from luwu.models.shapes import ModelShape


class KernelsWanted(BaseModel):
    """A model's shape, sequences of a worker, and sequences that a block takes at a time; seconds for each kernel."""

    model: dict[str, Any]
    dtype: str
    rows: int
    micro_batch: int | None
    seconds: float

    def shape(self) -> ModelShape:
        """The model."""
        return ModelShape(**self.model)


class KernelSeconds(BaseModel):
    """Seconds of a layer on the rows of one slice, and of what is outside the layers on all rows.

    ``last_product``: of a layer's forward, what a recompute in backward leaves out, as nothing is kept of it.
    ``copy_rate``: bytes a second that are handed over; ``sum_rate``: elements a second that are added up; ``products``:
    flop a second by tokens x inner x columns.
    """

    layer_forward: float
    layer_backward: float
    last_product: float
    root_forward: float
    root_backward: float
    copy_rate: float
    sum_rate: float
    memory_rate: float
    products: dict[str, float]


def measure_kernels(
    model: ModelShape, dtype: str, rows: int, micro_batch: int | None, workers: int, seconds: float
) -> KernelSeconds:
    """Time the kernels in as many processes as there are workers, all at once, each with a worker's threads.

    Returns:
        The mean over the processes.

    Raises:
        LuwuError: one of them failed.
    """
    wanted = KernelsWanted(model=asdict(model), dtype=dtype, rows=rows, micro_batch=micro_batch, seconds=seconds)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "luwu.probe.kernels"],
            env=worker_environment(workers),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(workers)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(wanted.model_dump_json() + "\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        return _mean([_answer(process) for process in _begun(processes)])
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _begun(processes: Sequence[subprocess.Popen[str]]) -> Sequence[subprocess.Popen[str]]:
    """Return the processes, all of which have been told to begin."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


def _answer(process: subprocess.Popen[str]) -> KernelSeconds:
    output, errors = process.communicate()
    if process.returncode:
        raise LuwuError(f"kernels could not be timed: {errors.strip()[-2000:]}")
    return KernelSeconds.model_validate(json.loads(output.splitlines()[-1]))


def _mean(found: Sequence[KernelSeconds]) -> KernelSeconds:
    plain = [each.model_dump() for each in found]
    mean = {name: statistics.fmean(each[name] for each in plain) for name in plain[0] if name != "products"}
    products = {name: statistics.fmean(each["products"][name] for each in plain) for name in plain[0]["products"]}
    return KernelSeconds(**mean, products=products)
