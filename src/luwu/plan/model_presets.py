"""Models to plan for by name, and those of Hugging Face folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from luwu.core.errors import ConfigError
from luwu.core.quantities import shown
from luwu.models.config_file import read_config_file, text_fields
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
    return replace(shape, positions=OPT_POSITIONS)


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


KNOWN_KINDS = ("gpt2", "opt", "llama", "mistral", "qwen2", "mixtral")
"""Kinds of config.json whose parameters follow from their fields; transformers counts those of others."""


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
    fields = _Fields(text_fields(read_config_file(file, "model")), file)
    shape = _opt_or_gpt2(fields) if fields.kind in ("gpt2", "opt") else _gated(fields)
    return shape if fields.kind in KNOWN_KINDS else _count(shape, file)


def _count(shape: ModelShape, file: Path) -> ModelShape:
    """The shape with the parameters that transformers' own model of the file has, layers as the worker finds them."""
    from luwu.models.pretrained import build_causal_on_meta
    from luwu.worker.layout import lay_out

    model = build_causal_on_meta(file, vocabulary=1, seq=2)
    _, *units = lay_out(model)
    sizes = [sum(slot.numel for block in unit.blocks for slot in block.slots) for unit in units]
    tables = tuple(size for unit, size in zip(units, sizes, strict=True) if unit.outer)
    inside = sum(sizes) - sum(tables)
    whole = sum(parameter.numel() for parameter in model.parameters())
    return replace(shape, counted=(round(inside / shape.layers), whole - inside), counted_tables=tables)


MOST = 2**40
"""Bound of a size in a configuration."""


class _Fields:
    """A config's numbers, under the first of several names that it has."""

    def __init__(self, raw: Mapping[str, Any], file: Path) -> None:
        self._raw = raw
        self._file = file
        self.kind = str(raw.get("model_type", "llama"))
        self.name = file.parent.name or self.kind

    def number(self, *names: str, default: int | None = None) -> int:
        """A number from 1 to `MOST`; ConfigError where the file has none and there is no default."""
        found = next((self._raw[name] for name in names if self._raw.get(name) is not None), default)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= MOST:
            raise ConfigError(
                f"model: {self._file}: {names[0]}: expected a number from 1 to {MOST}, found {shown(found)}; "
                "use --layers, --hidden and --heads for a model that has no such field"
            )
        return found

    def flag(self, name: str, default: bool) -> bool:
        """A truth value."""
        return bool(self._raw.get(name, default))


def _opt_or_gpt2(fields: _Fields) -> ModelShape:
    hidden = fields.number("hidden_size", "n_embd")
    positions = fields.number("max_position_embeddings", "n_positions", default=1024)
    shape = gpt_shape(
        fields.number("num_hidden_layers", "n_layer"),
        hidden,
        fields.number("num_attention_heads", "n_head"),
        sequence=positions,
        vocabulary=fields.number("vocab_size"),
        name=fields.name,
    )
    skipped = 2 if fields.kind == "opt" else 0
    wide = fields.number("ffn_dim", "n_inner", default=4 * hidden)
    return replace(shape, feed_forward=wide, positions=positions + skipped)


def _gated(fields: _Fields) -> ModelShape:
    heads, hidden = fields.number("num_attention_heads"), fields.number("hidden_size")
    experts = fields.number("num_local_experts", "num_experts", default=1)
    shape = llama_shape(
        fields.name,
        layers=fields.number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        key_value_heads=fields.number("num_key_value_heads", default=heads),
        feed_forward=fields.number(*(["moe_intermediate_size"] if experts > 1 else []), "intermediate_size"),
        vocabulary=fields.number("vocab_size"),
        sequence=fields.number("max_position_embeddings", default=2048),
        experts=experts,
        experts_per_token=fields.number("num_experts_per_tok", default=1),
        tied=fields.flag("tie_word_embeddings", False),
        attention_biases=fields.kind == "qwen2" or fields.flag("attention_bias", False),
    )
    return replace(shape, head_width=fields.number("head_dim", default=hidden // heads))
