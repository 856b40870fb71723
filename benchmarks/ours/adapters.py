"""A run of LuWu's GPT whose matrices have adapters of peft, in a store that this process opens; prints its figures.

Settings: folder, layers, hidden, seq, batch, rank, dtype, memory, warm_steps, steps.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kit.child import settings, take_stdout
from peft import LoraConfig, inject_adapter_in_model

import luwu
from luwu.models.gpt import GPT, VOCABULARY, Block, GPTConfig
from luwu.models.pretrained import on_meta

MATRICES = ["attention.inputs", "attention.output", "expand", "contract"]


def train(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return seconds of each measured step, bytes read and written in the mean of them, and bytes of the store."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    config = GPTConfig(wanted["layers"], wanted["hidden"], wanted["hidden"] // 64, wanted["seq"])
    adapters = LoraConfig(r=wanted["rank"], lora_alpha=2 * wanted["rank"], target_modules=MATRICES)
    ids = torch.randint(VOCABULARY, (wanted["batch"], wanted["seq"] + 1), generator=torch.Generator().manual_seed(0))
    seconds = []
    with luwu.open(wanted["folder"], memory=wanted["memory"]) as session:
        model = on_meta(partial(GPT, config))
        with torch.device("meta"):
            inject_adapter_in_model(adapters, model)
        luwu.parallelize(model, session, blocks=[Block], dtype=getattr(torch, wanted["dtype"]))
        optimizer = luwu.AdamW(model, lr=1e-4)
        assert session.server is not None
        before = {}
        for step in range(wanted["warm_steps"] + wanted["steps"]):
            if step == wanted["warm_steps"]:
                session.wait_durable()  # a step's writes may follow it
                before = session.server.stats()
            begun = time.monotonic()
            model(ids[:, :-1], ids[:, 1:]).loss.backward()
            optimizer.step()
            seconds.append(time.monotonic() - begun)
        session.wait_durable()
        after = session.server.stats()
    moved = {name: (after[name] - before[name]) / wanted["steps"] for name in ("bytes_read", "bytes_written")}
    store = sum(path.stat().st_blocks * 512 for path in Path(wanted["folder"]).rglob("*") if path.is_file())
    return {"step_seconds": seconds[wanted["warm_steps"] :], "store_bytes": store, **moved}


def main() -> None:
    """Trains, and prints the figures as JSON."""
    replies = take_stdout()
    replies.write(json.dumps(train(settings())) + "\n")


if __name__ == "__main__":
    main()
