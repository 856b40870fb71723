"""gloo: every rank's private buffer summed, and the sum given to every rank. Settings: elements (float32).

One sample times all-reduce, and reduce-scatter plus all-gather; each half of the second is also told apart.
"""

from __future__ import annotations

import time

import torch
from kit.child import serve, settings, take_stdout
from torch import distributed
from torch_group import join


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    elements = settings()["elements"]
    rank, world = join()
    gradient = torch.empty(elements)
    gathered = torch.empty(elements)
    part = torch.empty(elements // world)

    def sample() -> dict[str, float]:
        gradient.fill_(rank + 1.0)
        distributed.barrier()
        started = time.perf_counter()
        distributed.all_reduce(gradient)
        all_reduce = time.perf_counter() - started
        gradient.fill_(rank + 1.0)
        distributed.barrier()
        started = time.perf_counter()
        distributed.reduce_scatter_tensor(part, gradient)
        scattered = time.perf_counter()
        distributed.all_gather_into_tensor(gathered, part)
        ended = time.perf_counter()
        if float(gathered[-1]) != world * (world + 1) / 2:
            raise RuntimeError(f"gloo summed to {float(gathered[-1])}, expected {world * (world + 1) / 2}")
        return {
            "all_reduce": all_reduce,
            "reduce_scatter": scattered - started,
            "all_gather": ended - scattered,
            "reduce_scatter_all_gather": ended - started,
        }

    sample()
    serve(replies, sample)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
