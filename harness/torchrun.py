"""torchrun for one node of a job that has one node or two, and goes on with those that are there."""

from __future__ import annotations

import sys


def elastic_node(port: int, *program: str, first: bool) -> list[str]:
    """Return the command.

    Args:
        port: where the nodes meet.
        program: the workers' program and its arguments, one worker a node.
        first: the nodes meet at this one.
    """
    meeting = f"is_host={int(first)},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=6"
    return [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1",
        "--max-restarts", "9", "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-id", "elastic",
        "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", meeting, *program,
    ]  # fmt: skip
