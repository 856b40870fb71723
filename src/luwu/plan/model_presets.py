"""Models to plan for by name, and those of Hugging Face folders."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from luwu.core.errors import ConfigError
from luwu.models.config_file import read_config_file, text_fields
from luwu.models.config_shape import follows_from_fields, shape_of
from luwu.models.shapes import ModelShape, gpt_shape, llama_shape
from luwu.plan.names import find_preset

OPT_VOCABULARY = 50272
OPT_POSITIONS = 2050  # 2048 and the two that OPT skips

_PAPER = {  # arXiv 2409.00918: blocks, heads, hidden
    "opt-1.3b": (24, 32, 2048),
    "opt-2.7b": (32, 32, 2560),
    "opt-6.7b": (32, 32, 4096),
    "opt-13b": (40, 40, 5120),
    "opt-30b": (48, 56, 7168),
    "opt-66b": (64, 72, 9216),
    "175b": (96, 96, 12288),
    "276b": (112, 112, 14336),
    "505b": (124, 144, 18432),
    "1t": (172, 172, 22016),
}


def _paper_shape(name: str) -> ModelShape:
    layers, heads, hidden = _PAPER[name]
    shape = gpt_shape(layers, hidden, heads, sequence=1024, vocabulary=OPT_VOCABULARY, name=name)
    return replace(shape, positions=OPT_POSITIONS, fused_attention=False)


MODELS: dict[str, ModelShape] = {name: _paper_shape(name) for name in _PAPER} | {
    shape.name: shape
    for shape in (
        replace(gpt_shape(12, 768, 12, sequence=1024, vocabulary=50257, name="gpt2"), positions=1024),
        replace(gpt_shape(48, 1600, 25, sequence=1024, vocabulary=50257, name="gpt2-xl"), positions=1024),
        # Their config.json of Hugging Face.
        llama_shape(
            "llama-3.1-8b", layers=32, hidden=4096, heads=32, key_value_heads=8, feed_forward=14336,
            vocabulary=128256, sequence=8192,
        ),
        llama_shape(
            "llama-3.1-70b", layers=80, hidden=8192, heads=64, key_value_heads=8, feed_forward=28672,
            vocabulary=128256, sequence=8192,
        ),
        llama_shape(
            "llama-3.1-405b", layers=126, hidden=16384, heads=128, key_value_heads=8, feed_forward=53248,
            vocabulary=128256, sequence=8192,
        ),
        llama_shape(
            "qwen2.5-7b", layers=28, hidden=3584, heads=28, key_value_heads=4, feed_forward=18944,
            vocabulary=152064, sequence=4096, attention_biases=True,
        ),
        llama_shape(
            "qwen2.5-72b", layers=80, hidden=8192, heads=64, key_value_heads=8, feed_forward=29568,
            vocabulary=152064, sequence=4096, attention_biases=True,
        ),
        llama_shape(
            "mixtral-8x7b", layers=32, hidden=4096, heads=32, key_value_heads=8, feed_forward=14336,
            vocabulary=32000, sequence=4096, experts=8, experts_per_token=2,
        ),
        llama_shape(
            "mixtral-8x22b", layers=56, hidden=6144, heads=48, key_value_heads=8, feed_forward=16384,
            vocabulary=32768, sequence=4096, experts=8, experts_per_token=2,
        ),
    )
}  # fmt: skip


def find_model(name: str) -> ModelShape:
    """A preset, or the model that a folder's config.json (or that file) describes.

    Raises:
        ConfigError: there is neither, or the file describes nothing that is understood.
    """
    path = Path(name).expanduser()
    if path.exists():
        return read_config(path)
    if os.sep in name:
        raise ConfigError(f"model: expected a known name or a folder with a config.json, found no {name}; check it")
    return find_preset("model", name, MODELS, also="a folder with a config.json")


def read_config(path: Path) -> ModelShape:
    """The shape that a config.json of transformers describes.

    Raises:
        ConfigError: the file cannot be read, or lacks a field; names it.
    """
    file = path / "config.json" if path.is_dir() else path
    fields = text_fields(read_config_file(file, "model"))
    shape = shape_of(fields, file)
    return shape if follows_from_fields(fields) else _count(shape, file)


def _count(shape: ModelShape, file: Path) -> ModelShape:
    """The shape with the parameters that transformers' own model of the file has, layers as the worker finds them."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    from luwu.models.pretrained import build_causal_on_meta
    from luwu.worker.layout import lay_out

    model = build_causal_on_meta(file, vocabulary=1, seq=2)
    _, *units = lay_out(model)
    sizes = [sum(slot.numel for block in unit.blocks for slot in block.slots) for unit in units]
    tables = tuple(size for unit, size in zip(units, sizes, strict=True) if unit.outer)
    inside = sum(sizes) - sum(tables)
    whole = sum(parameter.numel() for parameter in model.parameters())
    head = model.get_output_embeddings()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear | Conv1D) and module is not head]
    widths = sum(sum(module.weight.shape) for module in linear)
    return replace(
        shape,
        counted=(round(inside / shape.layers), whole - inside),
        counted_tables=tables,
        counted_widths=round(widths / shape.layers),
    )
