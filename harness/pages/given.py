"""Names that the pages' Python takes for granted, each with the small value that it gets."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import luwu
from harness.pages.world import small_llama
from luwu.models.gpt import GPT, GPTConfig, Prediction

ROWS, TOKENS = 4, 8
IMPORTED = {
    "contextlib": "contextlib",
    "itertools": "itertools",
    "luwu": "luwu",
    "torch": "torch",
    "dcp": "torch.distributed.checkpoint",
    "get_model_state_dict": "torch.distributed.checkpoint.state_dict",
    "get_optimizer_state_dict": "torch.distributed.checkpoint.state_dict",
    "set_model_state_dict": "torch.distributed.checkpoint.state_dict",
    "set_optimizer_state_dict": "torch.distributed.checkpoint.state_dict",
    "AutoModelForCausalLM": "transformers",
    "Trainer": "transformers",
    "LoraConfig": "peft",
    "PeftModel": "peft",
    "get_peft_model": "peft",
    "get_peft_model_state_dict": "peft",
    "Block": "luwu.models.gpt",
}
"""Names that a reader imports, and from where."""

OF_TRANSFORMERS = ("input_ids", "lm_head", "get_model_state_dict")
"""Words of blocks whose model is one of transformers."""


class Reader(GPT):
    """A small model whose targets are its ids, where nothing else is said."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Prediction:  # type: ignore[override]
        """Return the loss."""
        return super().forward(ids, ids if targets is None else targets)


def tokens(rows: int = ROWS) -> Tensor:
    """Return ids, int64 [rows, tokens]."""
    return torch.arange(rows * TOKENS).view(rows, TOKENS) % 250


class Given:
    """Values of the names that a block takes for granted, each made when it is first asked for.

    Args:
        text: the block.
        folder: a folder of its own.
    """

    def __init__(self, text: str, folder: Path) -> None:
        self._text = text
        self._folder = folder
        self._values: dict[str, Any] = {}
        self._makers: dict[str, Callable[[], Any]] = {
            "session": lambda: luwu.open(self._folder, memory="64MiB"),
            "config": small_llama,
            "model": self._model,
            "optim": lambda: luwu.AdamW(self["model"], lr=1e-3),
            "optimizer": lambda: torch.optim.AdamW(self["model"].parameters(), lr=1e-3),
            "base": self._base,
            "ids": tokens,
            "targets": tokens,
            "batch": tokens,
            "batches": lambda: [tokens(), tokens()],
            "batches_from": lambda: lambda step: [tokens(), tokens()],
            "batch_of": lambda: lambda step: tokens(64),
        }

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            self._values[name] = self._makers[name]()
        return self._values[name]

    def names_of(self, text: str) -> Iterator[tuple[str, Any]]:
        """Yield the names that a block uses and neither it nor a block before it has made, with their values."""
        for name in dict.fromkeys(node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)):
            if name in IMPORTED:
                module = import_module(IMPORTED[name])
                yield name, module if IMPORTED[name].split(".")[-1] == name or name == "dcp" else getattr(module, name)
            elif name in self._makers and name in taken_for_granted(text):
                yield name, self[name]

    def close(self) -> None:
        """Close the session, if one was asked for."""
        if "session" in self._values:
            self._values["session"].close()

    def _model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        if any(word in self._text for word in OF_TRANSFORMERS):
            import transformers

            model: torch.nn.Module = transformers.LlamaForCausalLM(small_llama())
        else:
            model = Reader(GPTConfig(layers=2, hidden=16, heads=2, seq=TOKENS))
        plain = "parallelize(" in self._text or "get_model_state_dict" in self._text
        return model if plain else luwu.parallelize(model, self["session"])

    def _base(self) -> torch.nn.Module:
        import transformers

        return transformers.AutoModelForCausalLM.from_pretrained("llama/", dtype=torch.bfloat16)


def taken_for_granted(text: str) -> set[str]:
    """Return the names that Python reads before it has given them a value."""
    first: dict[str, ast.expr_context] = {}
    for name in _in_order(ast.parse(text)):
        first.setdefault(name.id, name.ctx)
    return {name for name, context in first.items() if isinstance(context, ast.Load)}


def _in_order(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the names below a node as they are evaluated: what is assigned before what it is assigned to."""
    if isinstance(node, ast.Name):
        yield node
    fields = dict(ast.iter_fields(node))
    late = [name for name in ("target", "targets", "optional_vars") if name in fields]
    early = [name for name in ("value", "iter", "context_expr") if name in fields]
    for name in [*early, *late, *(name for name in fields if name not in (*early, *late))]:
        for each in fields[name] if isinstance(fields[name], list) else [fields[name]]:
            if isinstance(each, ast.AST):
                yield from _in_order(each)
