"""Settings of a run's model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from luwu.core.errors import ConfigError
from luwu.core.quantities import AbsolutePath, Fraction, Layers, Tokens, Width
from luwu.core.settings import FIXED, TOML_ONLY, Flag, Group

MOST_PARAMETERS = 2**44
"""Bound of the parameters in a GPT's layers, 17.6 trillion, that keeps lists of chunks at a length that can be made."""

GPT_PARTS = ("tokens", "positions", "norm")
"""Modules of the GPT beside its blocks that a pattern may match, as in `luwu.models.gpt`; that module loads torch."""

GPT_LAYER_PARTS = (
    "attention_norm",
    "attention",
    "attention.inputs",
    "attention.output",
    "network_norm",
    "expand",
    "contract",
    "dropout",
)
"""Modules of each of its blocks, which no pattern may match alone."""


class ModelSettings(Group):
    """The shape of the GPT, or another model."""

    path: Annotated[AbsolutePath | None, FIXED, Flag("--model")] = None
    """causal language model of transformers: its config.json, or a folder with it and weights; without it, a GPT"""
    layers: Annotated[Layers, FIXED] = 4
    """transformer layers of the GPT, each one block in the store"""
    hidden: Annotated[Width, FIXED] = 128
    """width of the residual stream; a multiple of heads"""
    heads: Annotated[Width, FIXED] = 4
    """attention heads"""
    seq: Annotated[Tokens, FIXED, Field(ge=2)] = 128
    """sequence length in tokens, which are bytes without a tokenizer"""
    dropout: Annotated[Fraction, FIXED, TOML_ONLY] = 0.0
    """share of activations dropped while training"""

    @model_validator(mode="after")
    def shape_is_of_the_gpt(self) -> ModelSettings:
        """Refuse a shape for another model, which has its shape from its own configuration."""
        fields = type(self).model_fields
        for name in ("layers", "hidden", "heads", "dropout"):
            if self.path is not None and getattr(self, name) != fields[name].default:
                raise ConfigError(
                    f"model.{name}: expected none beside model.path, found {getattr(self, name)}; "
                    f"change it in {self.path} or leave it out"
                )
        return self

    @model_validator(mode="after")
    def layers_can_be_listed(self) -> ModelSettings:
        """Refuse a model that no cluster could hold: its forecast would take hours."""
        most = MOST_PARAMETERS // (12 * self.hidden**2)
        if self.layers > most:
            raise ConfigError(
                f"model.layers: expected at most {most} of this hidden ({self.hidden}), found {self.layers}; take "
                "fewer layers or a smaller hidden"
            )
        return self

    @model_validator(mode="after")
    def heads_divide_hidden(self) -> ModelSettings:
        """Refuse heads that do not divide the width: every head gets the same number of channels."""
        if self.hidden % self.heads:
            nearest = max(1, round(self.hidden / self.heads)) * self.heads
            raise ConfigError(
                f"model.hidden: expected a multiple of model.heads ({self.heads}), found {self.hidden}; "
                f"set hidden to {nearest} or choose heads that divide {self.hidden}"
            )
        return self
