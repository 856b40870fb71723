"""Keys and values of the tokens that a GPT has seen, so that another token costs one token's work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from luwu.models.gpt import GPTConfig


class LayerCache:
    """Keys and values of one layer, each [batch, heads, seq, channels].

    It has the interface of the caches of transformers, so a parallelized model hands it to the layer as it is.
    """

    def __init__(self, cache: KeyValueCache, keys: Tensor, values: Tensor) -> None:
        self._cache = cache
        self._keys = keys
        self._values = values

    def get_seq_length(self) -> int:
        """Tokens that came before this forward."""
        return self._cache.tokens

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep those of new tokens, [batch, heads, new tokens, channels]; returns views of all so far."""
        before = self._cache.tokens
        after = before + keys.shape[2]
        self._keys[:, :, before:after] = keys
        self._values[:, :, before:after] = values
        return self._keys[:, :, :after], self._values[:, :, :after]


class KeyValueCache:
    """The keys and values of all layers, allocated once: 2 * layers * batch * seq * hidden elements.

    Args:
        config: the model's shape; no more than ``config.seq`` tokens fit.
        batch: texts that are written together, all of one length.
        dtypes: dtype of each layer's computation.
        device: device of the cache.
    """

    def __init__(self, config: GPTConfig, batch: int, dtypes: Sequence[torch.dtype], device: torch.device) -> None:
        shape = (2, batch, config.heads, config.seq, config.hidden // config.heads)
        self.tokens = 0
        """Number of cached tokens of each text; a forward of the model adds its own at its end."""
        self.layers = [LayerCache(self, *torch.empty(shape, dtype=dtype, device=device).unbind()) for dtype in dtypes]

    def clear(self) -> None:
        """Forget every token; the memory stays."""
        self.tokens = 0
