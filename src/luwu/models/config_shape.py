"""The shape of a model from the fields of its config.json. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from luwu.core.errors import ConfigError
from luwu.core.quantities import shown
from luwu.models.config_file import read_config_file
from luwu.models.shapes import ModelShape, gpt_shape, llama_shape

_NEEDED: dict[str, tuple[str, ...]] = {
    "gpt2": (),
    "opt": ("ffn_dim",),
    "llama": (),
    "mistral": ("num_key_value_heads",),
    "qwen2": ("num_key_value_heads",),
    "mixtral": ("num_key_value_heads", "num_local_experts"),
}
"""Kinds whose parameters follow from their fields, with the fields whose defaults are not those of `shape_of`."""

_MISLEADING = ("num_experts", "moe_intermediate_size", "pruned_heads", "num_local_experts")
"""Fields with which a model of these kinds has other parameters than its shape, or which it ignores."""


def shape_of(fields: Mapping[str, Any], file: Path) -> ModelShape:
    """Return the shape that a configuration's fields describe; ``file``: its config.json, for messages.

    Raises:
        ConfigError: a field is missing; names it.
    """
    found = _Fields(fields, file)
    return _opt_or_gpt2(found) if found.kind in ("gpt2", "opt") else _gated(found)


def follows_from_fields(fields: Mapping[str, Any]) -> bool:
    """Return True if the model's parameters are those of `shape_of`; else transformers must count them."""
    needed = _NEEDED.get(str(fields.get("model_type", "llama")))
    if needed is None or any(fields.get(name) for name in _MISLEADING if name not in needed):
        return False
    projected = fields.get("word_embed_proj_dim") not in (None, fields.get("hidden_size"))
    return not projected and all(name in fields for name in needed)


def least_shape(file: Path) -> ModelShape | None:
    """Return a shape of which the model has every matrix, and more; None where the file alone does not tell.

    It has no vectors and no learned positions, in which models of one kind differ.
    """
    try:
        fields = read_config_file(file, "model.path")
        if "text_config" in fields or not follows_from_fields(fields):
            return None
        shape = shape_of(fields, file)
    except ConfigError:  # the model's builder reports it
        return None
    return replace(shape, biases=False, attention_biases=False, norm_vectors=0, positions=0)


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
    wide = fields.number("ffn_dim" if fields.kind == "opt" else "n_inner", default=4 * hidden)
    return replace(shape, feed_forward=wide, positions=positions + skipped, fused_attention=fields.kind != "opt")


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
