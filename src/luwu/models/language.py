"""Language models that `luwu train` trains: one of transformers beside luwu's own GPT, with one interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from luwu.models.generation import Sampling
from luwu.models.gpt import Prediction
from luwu.models.tiled_head import tiled_forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CausalForward:
    """Calls a causal language model of transformers as the GPT is called: with ids and targets.

    Args:
        model: not parallelized yet, because its loss is to be computed in tiles; it is called without a cache.
        vocabulary: number of tokens in the data; predictions without targets are of these alone.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: int) -> None:
        self._model = model
        self._forward = tiled_forward(model)
        self._vocabulary = vocabulary
        # A mixture's balancing loss is part of what is trained on, but not of how well the text is known.
        self._auxiliary_weight = float(getattr(model.config, "router_aux_loss_coef", None) or 0.0)

    @property
    def tiled(self) -> bool:
        """True if the last loss was computed without the logits of the whole batch."""
        return self._forward.tiled

    def __call__(self, ids: Tensor, targets: Tensor | None = None) -> Prediction:
        """Predict the next token at every position; `ids` and `targets` are int64 [batch, tokens]."""
        options: dict[str, Any] = {"use_cache": False}
        if targets is None:
            return Prediction(logits=self._model(input_ids=ids, **options).logits[..., : self._vocabulary])
        balanced = self._auxiliary_weight > 0.0 and self._model.training
        if balanced:
            options["output_router_logits"] = True
        output = self._model(input_ids=ids, shift_labels=targets, **options)
        loss = output.loss
        if balanced and output.aux_loss is not None:
            loss = loss + self._auxiliary_weight * output.aux_loss
        return Prediction(loss=loss)


@torch.no_grad()
def generate_causal(
    model: PreTrainedModel,
    prompt: Tensor,
    count: int,
    vocabulary: int,
    sampling: Sampling,
    samples: int,
    on_tokens: Callable[[list[int]], None],
) -> None:
    """Go on from a prompt by the model's own ``generate``, with its cache and what its generation_config says.

    Args:
        model: parallelized or not, in eval mode.
        prompt: int64 [tokens], at least one.
        count: tokens to write at most; a text that has ended is filled up.
        vocabulary: tokens that may be written are below it.
        sampling: rule that chooses tokens; draws are on the model's device, and only the first text has its own seed.
        samples: texts that are written together.
        on_tokens: called with the next token of each text.
    """
    options: dict[str, Any] = {"do_sample": sampling.temperature > 0.0}
    if options["do_sample"]:
        options |= {"temperature": sampling.temperature, "top_k": sampling.top_k or 0}
    known = int(model.config.get_text_config().vocab_size)
    if known > vocabulary:
        options["suppress_tokens"] = list(range(vocabulary, known))
    ids = prompt.unsqueeze(0)
    ends = end_tokens(model)
    with torch.random.fork_rng([prompt.device] if prompt.device.type == "cuda" else []):
        torch.manual_seed(sampling.seed)
        model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            num_return_sequences=samples,
            pad_token_id=min(ends, default=0),
            streamer=_Streamer(on_tokens),
            **options,
        )


def end_tokens(model: PreTrainedModel) -> set[int]:
    """The tokens that end a text, by the model's generation_config."""
    found = getattr(model.generation_config, "eos_token_id", None)
    return set() if found is None else set(found) if isinstance(found, (list, tuple)) else {int(found)}


class _Streamer:
    """Receiver of the tokens that transformers reports: the prompt first, then one token of each text at a time."""

    def __init__(self, on_tokens: Callable[[list[int]], None]) -> None:
        self._on_tokens = on_tokens
        self._prompt = True

    def put(self, tokens: Tensor) -> None:
        """Take the prompt, or the next tokens, int64 [samples]."""
        if not self._prompt:
            self._on_tokens(tokens.tolist())
        self._prompt = False

    def end(self) -> None:
        """Nothing is left to do."""
