"""Operations on a checkpoint or a store, one after the other; prints the peak memory and the time of each as JSON.

usage: streaming.py SETTINGS(JSON: shape, folder) OPERATION...
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BUDGET_BLOCKS = 10
"""The server's budget in the benchmark of generation, in sizes of the largest block."""

PROMPT, TOKENS = list(range(16)), 16
"""The prompt, and the number of tokens written after it."""


def config_of(shape: dict[str, int]) -> Any:
    """A Llama of this many layers."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=shape["hidden"], intermediate_size=4 * shape["hidden"], num_hidden_layers=shape["layers"],
        num_attention_heads=8, num_key_value_heads=8, vocab_size=shape["vocabulary"],
    )  # fmt: skip


def make(shape: dict[str, int], folder: Path) -> None:
    """Writes the checkpoint that the others read; its own memory is not the question."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(config_of(shape)).save_pretrained(folder / "in", max_shard_size="200MB")
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "</s>"]
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "in" / "tokenizer.json"))


def import_safetensors(shape: dict[str, int], folder: Path) -> None:
    """`luwu import`."""
    from luwu.models.importing import import_pretrained

    import_pretrained(folder / "in", [folder / "store"])


def export_safetensors(shape: dict[str, int], folder: Path) -> None:
    """`luwu export`."""
    from luwu.store.exporting import export_safetensors as export

    export([folder / "store"], folder / "out", shard_bytes=200 * 10**6)


def export_dcp(shape: dict[str, int], folder: Path) -> None:
    """`luwu export --dcp`."""
    from luwu.store.dcp_output import export_dcp as export

    export([folder / "store"], folder / "dcp")


def import_dcp(shape: dict[str, int], folder: Path) -> None:
    """`luwu import` of torch.distributed.checkpoint."""
    from luwu.models.importing import import_pretrained

    import_pretrained(folder / "dcp", [folder / "back"], model_folder=folder / "in")


def generate(shape: dict[str, int], folder: Path) -> None:
    """`luwu generate`, with a budget for a few blocks, of the store that was imported."""
    from luwu.models.generation import Sampling
    from luwu.train.reading import find_readable
    from luwu.train.writing import write

    readable = find_readable([folder / "store"])
    largest = max(block.elements for block in readable.manifest.blocks) * 4
    with readable.open(memory=BUDGET_BLOCKS * largest) as model:
        written: list[list[int]] = []
        write(model, readable.vocabulary, PROMPT, TOKENS, Sampling(), 1, written.append)
    if not written:
        raise RuntimeError("expected tokens, found none")


def transformers(shape: dict[str, int], folder: Path) -> None:
    """The peer: load the checkpoint and save it again."""
    from transformers import LlamaForCausalLM

    LlamaForCausalLM.from_pretrained(folder / "in").save_pretrained(folder / "peer", max_shard_size="200MB")


OPERATIONS: dict[str, Callable[[dict[str, int], Path], None]] = {
    "make": make,
    "import": import_safetensors,
    "export": export_safetensors,
    "export --dcp": export_dcp,
    "import of dcp": import_dcp,
    "generate": generate,
    "transformers": transformers,
}


def peak_bytes() -> int:
    """The most memory that this process had, its program and libraries included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    for operation in sys.argv[2:]:
        begun = time.perf_counter()
        OPERATIONS[operation](settings["shape"], Path(settings["folder"]))
        print(json.dumps({"peak_bytes": peak_bytes(), "seconds": time.perf_counter() - begun}))
