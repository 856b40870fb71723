"""A folder with what the pages take for granted: text, a tokenizer, a small model, runs and stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXT = "".join(f"It was said that {number} is followed by {number + 1}.\n" for number in range(3000))

KEY = "0123456789abcdef" * 4
"""Job key of the servers here."""

SMALLER = {"8GiB": "64MiB", "32GiB": "64MiB", "10_000": "3", "seq=512": "seq=16", "1000 - ": "3 - ", ":9090": ":0"}
"""Sizes and ports of the pages' Python, and those that tests have."""

OWN_TOKENIZER = "of-models.json"
"""The tokenizer of the models; a page may write another tokenizer.json."""

MODEL_FOLDERS = ("llama/", "./llama", "./my-model")
"""Folders of pages that have a model of transformers."""


def placed(text: str, folder: Path) -> str:
    """Return a block's text with its disks in a folder."""
    return text.replace("/nvme", f"{folder}/nvme").replace("FOLDER", "texts")


def prepare(folder: Path) -> None:
    """Write text, a tokenizer and a job key into a folder."""
    from luwu.data import train_tokenizer

    (folder / "texts").mkdir(parents=True)
    (folder / "texts" / "counting.txt").write_text(TEXT)
    (folder / "start.txt").write_text(TEXT[:200])
    (folder / "test.txt").write_text(TEXT[:4000])
    (folder / "job.key").write_text(f"{KEY}\n")
    (folder / "test.jsonl").write_text(f"{json.dumps({'text': TEXT[:4000]})}\n")
    train_tokenizer([folder / "texts"], folder / OWN_TOKENIZER, 300)
    (folder / "tokenizer.json").write_text((folder / OWN_TOKENIZER).read_text())


def write_model(folder: Path) -> None:
    """Write a model of transformers into a folder, with its tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.LlamaForCausalLM(small_llama()).save_pretrained(folder)
    (folder / "tokenizer.json").write_text((folder.parent / OWN_TOKENIZER).read_text())


def small_llama() -> Any:
    """Return the configuration of a model of transformers that trains in milliseconds."""
    import transformers

    return transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=300, bos_token_id=0, eos_token_id=0, pad_token_id=0, max_position_embeddings=512,
    )  # fmt: skip
