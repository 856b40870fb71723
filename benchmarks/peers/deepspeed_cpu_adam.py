"""DeepSpeedCPUAdam in memory, mixed precision: bf16 gradient in, fp32 master and states, bf16 copy out.

Settings: elements, threads. One sample is one whole update in seconds: gradient cast up, Adam, parameters cast down.
"""

from __future__ import annotations

import time

import torch
from kit.child import serve, settings, take_stdout
from kit.model import ADAMW


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    wanted = settings()
    elements = wanted["elements"]
    torch.set_num_threads(wanted["threads"])
    generator = torch.Generator().manual_seed(1)
    master = torch.nn.Parameter(torch.randn(elements, generator=generator))
    master.grad = torch.zeros_like(master)
    gradient = torch.randn(elements, generator=generator).bfloat16()
    low = master.detach().bfloat16()
    optimizer = DeepSpeedCPUAdam([master], **ADAMW, adamw_mode=True)

    def sample() -> dict[str, float]:
        started = time.perf_counter()
        master.grad.copy_(gradient)
        optimizer.step()
        low.copy_(master.detach())
        return {"seconds": time.perf_counter() - started}

    for _ in range(2):
        sample()
    serve(replies, sample)


if __name__ == "__main__":
    main()
