"""torchrun for one node of a job that has one node or two, and goes on with those that are there."""

from __future__ import annotations

import sys
from collections.abc import Mapping

ENVIRONMENT: Mapping[str, str] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Environment of `elastic_node`. Without it torch (2.13) lets no node in that comes after the first meeting: it waits a
minute for an address that the nodes which have met before do not write again, and all of them end."""


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
