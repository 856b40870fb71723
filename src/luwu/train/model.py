"""The model of a run: luwu's own GPT, or one of transformers from its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from luwu.core.errors import DataError
from luwu.data.tokenizer import Tokens
from luwu.launch.folder import has_weights
from luwu.launch.settings import Settings
from luwu.models.gpt import GPT, Block, GPTConfig
from luwu.models.kv_cache import KeyValueCache
from luwu.models.language import CausalForward
from luwu.models.pretrained import build_causal_on_meta, on_meta
from luwu.optim.choosing import optimizer_class
from luwu.session.session import Session
from luwu.worker.parallelize import parallelize

Predict = Callable[..., Any]
"""Called with ids and, for a loss, targets, int64 [batch, tokens]: gives a `luwu.models.gpt.Prediction`."""


@dataclass(frozen=True)
class RunModel:
    """A parallelized model, the function that calls it, and its number of parameters."""

    module: nn.Module
    predict: Predict
    parameters: int
    dtype: torch.dtype
    device: torch.device

    def check_tokens(self, tokens: Tokens) -> None:
        """Check that the model knows all of these tokens.

        Raises DataError, as they are another tokenizer's if it does not.
        """
        config: Any = self.module.config
        known = config.vocabulary if isinstance(self.module, GPT) else int(config.get_text_config().vocab_size)
        largest = int(tokens.max(initial=0))
        if largest >= known:
            raise DataError(
                f"tokenizer: expected tokens below {known}, as many as the model has, found {largest}; it is not the "
                "model's own: put the tokenizer.json that belongs to the model beside its config.json, and import again"
            )

    @property
    def tiles_logits(self) -> bool:
        """True if losses are known to be computed without the logits of a whole batch."""
        return self.predict.tiled if isinstance(self.predict, CausalForward) else True

    @property
    def longest(self) -> int | None:
        """Tokens of the longest text that the model can see; None: no limit is known."""
        if isinstance(self.module, GPT):
            return self.module.config.seq
        config: Any = self.module.config
        found = getattr(config.get_text_config(), "max_position_embeddings", None)
        return None if found is None else int(found)

    def new_cache(self, samples: int) -> KeyValueCache | None:
        """Return an empty cache for texts written together; None: `predict` takes none."""
        if not isinstance(self.module, GPT):
            return None
        dtypes = [next(layer.parameters()).dtype for layer in self.module.blocks]
        return KeyValueCache(self.module.config, samples, dtypes, self.device)


def make_model(settings: Settings, session: Session, device: torch.device, vocabulary: int) -> RunModel:
    """Build the run's model on meta and move it into the session's store; ``vocabulary``: tokens of the data.

    Raises:
        ConfigError: the model's folder or configuration cannot be used, or is too small for the data.
        CheckpointError: the folder's weights cannot.
        ManifestMismatchError, MemoryBudgetError: as `luwu.parallelize`.
    """
    path = None if settings.model.path is None else Path(settings.model.path)
    module: nn.Module
    predict: Predict
    if path is None:
        config = GPTConfig(**settings.model.model_dump(exclude={"path"}), vocabulary=vocabulary)
        module = predict = on_meta(partial(GPT, config))
    else:
        module = build_causal_on_meta(path, vocabulary, settings.model.seq)
        predict = CausalForward(module, vocabulary)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    dtype = getattr(torch, settings.run.dtype)
    parallelize(
        module,
        session,
        blocks=[Block] if path is None else None,
        optimizer=optimizer_class(settings.optimizer),
        dtype=dtype,
        block_dtypes={pattern: getattr(torch, name) for pattern, name in settings.run.block_dtypes.items()},
        device=device,
        device_memory=settings.run.device_memory,
        checkpoint=settings.run.checkpoint,
        micro_batch_size=settings.run.micro_batch,
        offload=settings.run.offload,
        seed=settings.run.seed,
        weights=path if path is not None and has_weights(path) else None,
    )
    return RunModel(module, predict, parameters, dtype, device)
