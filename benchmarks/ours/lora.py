"""luwu's side of `lora`: peft, then parallelize, in a store that this process opens.

Settings: folder, steps, hidden, layers, dtype.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from kit.adapters import ADAMW, build, counts, loss_of
from kit.child import serve, settings, take_stdout

import luwu


def train(wanted: dict[str, Any]) -> dict[str, Any]:
    """Losses, counts, what the store takes on the disk, and what a step pushes."""
    with tempfile.TemporaryDirectory(dir=wanted["folder"], prefix="luwu-") as folder:
        with luwu.open(folder, memory="1GiB") as session:
            model = build(wanted)
            found: dict[str, Any] = counts(model)
            luwu.parallelize(model, session, dtype=getattr(torch, wanted["dtype"]))
            optimizer = luwu.AdamW(model, **ADAMW)
            losses = []
            for step in range(wanted["steps"]):
                loss = loss_of(model, step)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert session.server is not None
            pushed_bytes = session.server.stats()["bytes_pushed"] / wanted["steps"]
        store_bytes = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return {**found, "losses": losses, "store_bytes": store_bytes, "pushed_bytes": pushed_bytes}


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    serve(replies, lambda: train(wanted))


if __name__ == "__main__":
    main()
