"""Models by their shape: the places of parameters, and the cost of a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from luwu.core.errors import ConfigError
from luwu.core.manifest import LEAST_SHARE

BLOCK_ALIGNMENT_ELEMENTS = 32
"""Elements that a parameter is aligned to. A test compares it with `luwu.worker.flatten`, which loads torch."""


@dataclass(frozen=True)
class BlockNumbers:
    """Numbers of a model's blocks: of its ``tables``, in the order of a forward, its ``layers``, and its ``head``.

    The head has the number of the table that it is tied to, and 0 where it lies in the root.
    """

    tables: tuple[int, ...]
    layers: range
    head: int


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer, dense or a mixture of experts.

    ``feed_forward`` is the width of one expert's network; ``tied``: the head is the token table; ``positions``: rows of
    a learned table, 0 for rotary ones; ``norm_vectors``: 2 for a layer norm with bias, 1 for a root-mean-square one.
    ``counted``: parameters of a layer and of the rest, where somebody counted those of a model of another kind, and
    ``counted_tables`` those of each module of the rest that is a block of its own; ``counted_widths``: inputs and
    outputs of all of a layer's matrices. ``lora_rank``: rank of LoRA adapters on each matrix of a layer, beside which
    all else is frozen; 0: there are none, and all is trained. ``fused_attention``: queries, keys and values are one
    matrix.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    feed_forward: int
    key_value_heads: int
    head_width: int
    gated: bool = False
    experts: int = 1
    experts_per_token: int = 1
    tied: bool = True
    positions: int = 0
    biases: bool = True
    attention_biases: bool | None = None
    norm_vectors: int = 2
    counted: tuple[int, int] | None = None
    counted_tables: tuple[int, ...] = ()
    counted_widths: int = 0
    lora_rank: int = 0
    fused_attention: bool = False

    def layer_parameters(self) -> list[int]:
        """Elements of each parameter of one layer, in no particular order."""
        if self.counted is not None:
            return [self.counted[0]]
        query, key_value = self.heads * self.head_width, self.key_value_heads * self.head_width
        found = [self.hidden * query, *[self.hidden * key_value] * 2, query * self.hidden]
        if self.biases:
            found += [query, *[key_value] * 2, self.hidden]
        elif self.attention_biases:  # Qwen2: of the three projections alone
            found += [query, *[key_value] * 2]
        matrices = [self.hidden * self.feed_forward] * (3 if self.gated else 2)
        found += matrices * self.experts
        if self.biases:
            found += [self.feed_forward, self.hidden]
        if self.experts > 1:
            found.append(self.hidden * self.experts)
        return found + [self.hidden] * (2 * self.norm_vectors)

    def outside_parameters(self) -> list[int]:
        """Elements of each parameter outside the layers: tables, the last norm and the head."""
        if self.counted is not None:
            return [self.counted[1]]
        found = [self.vocabulary * self.hidden] * (1 if self.tied else 2)
        if self.positions:
            found.append(self.positions * self.hidden)
        return found + [self.hidden] * self.norm_vectors

    @property
    def layer_size(self) -> int:
        """Parameters of one layer, without its adapters."""
        return sum(self.layer_parameters())

    def adapter_parameters(self) -> list[int]:
        """Elements of each parameter of one layer's adapters: two matrices beside each of the layer's."""
        if not self.lora_rank:
            return []
        if self.counted is not None:
            return [self.lora_rank * self.counted_widths]
        return [self.lora_rank * size for columns, inner, _ in matrices(self) for size in (inner, columns)]

    @property
    def adapter_size(self) -> int:
        """Parameters of one layer's adapters."""
        return sum(self.adapter_parameters())

    @property
    def trained_layer_size(self) -> int:
        """Parameters of one layer that are trained: those of its adapters, or all."""
        return self.adapter_size if self.lora_rank else self.layer_size

    @property
    def trained_parameters(self) -> int:
        """Parameters of the model that are trained."""
        return self.layers * self.trained_layer_size + (0 if self.lora_rank else self.outside_size)

    def table_parameters(self) -> list[int]:
        """Elements of each embedding, and untied head, that is a block of its own, in the order of a forward."""
        if self.counted is not None:
            return list(self.counted_tables)
        tables = [self.vocabulary * self.hidden, self.positions * self.hidden]
        tables += [] if self.tied else [self.vocabulary * self.hidden]
        return [size for size in tables if size >= self.layer_size / LEAST_SHARE]

    @property
    def outside_size(self) -> int:
        """Parameters outside the layers."""
        return sum(self.outside_parameters())

    @property
    def parameters(self) -> int:
        """Parameters of the model, its adapters included."""
        return self.layers * (self.layer_size + self.adapter_size) + self.outside_size

    @property
    def active_layer_size(self) -> int:
        """Parameters of one layer that a token passes: of a mixture, those of its experts alone."""
        idle = (self.experts - self.experts_per_token) * self.hidden * self.feed_forward * (3 if self.gated else 2)
        return self.layer_size - idle

    def block_elements(self) -> list[int]:
        """Elements of each block as the store has them: the root, then all others in order; parameters are padded.

        The blocks of adapters are apart, see `adapter_elements`.
        """
        blocks = self.block_numbers()
        found = [0] * (1 + len(blocks.tables) + self.layers)
        tables = self.table_parameters()
        root = self.outside_parameters()
        for number, size in zip(blocks.tables, tables, strict=True):
            found[number] = padded([size])
            if self.counted is None:
                root.remove(size)
        found[0] = padded(root if self.counted is None else [root[0] - sum(tables)])
        layers = blocks.layers
        found[layers.start : layers.stop] = [padded(self.layer_parameters())] * self.layers
        return found

    def adapter_elements(self) -> list[int]:
        """Elements of each block of adapters, one for each layer; empty: there are none."""
        return [padded(self.adapter_parameters())] * self.layers if self.lora_rank else []

    def block_numbers(self) -> BlockNumbers:
        """Return the numbers of the blocks by their roles, as places in `block_elements`."""
        tables = len(self.table_parameters())
        own_head = int(tables > 0 and not self.tied and self._head_is_a_block())
        first = 1 + tables - own_head
        layers = range(first, first + self.layers)
        head = layers.stop if own_head else 1 if self.tied and self._head_is_a_block() else 0
        return BlockNumbers((*range(1, first), *([head] if own_head else [])), layers, head)

    def _head_is_a_block(self) -> bool:
        if self.counted is not None:
            return bool(self.counted_tables)
        return self.vocabulary * self.hidden >= self.layer_size / LEAST_SHARE

    def forward_flop_per_token(self) -> float:
        """Multiply-adds of matrices, times two, for one token's forward through layers and head.

        Attention is counted whole, not its causal half, as arXiv 2104.04473 does.
        """
        attention = 4 * self.sequence * self.heads * self.head_width
        return float(self.layers * (self._matrix_flop_per_token() + attention) + self.head_flop_per_token())

    def _matrix_flop_per_token(self) -> int:
        return 2 * (self.active_layer_size - self.hidden * 2 * self.norm_vectors)

    def head_flop_per_token(self) -> float:
        """Operations per token of the projection to the vocabulary alone."""
        return 2.0 * self.hidden * self.vocabulary

    def step_flop_per_token(self, *, recompute: bool) -> float:
        """Return the operations of forward and backward; with recompute, of a second forward of the layers, too.

        Frozen matrices have no gradients: the backward of their products is as long as the forward. Adapters are not
        counted.
        """
        forward, head = self.forward_flop_per_token(), self.head_flop_per_token()
        saved = self.layers * self._matrix_flop_per_token() + head if self.lora_rank else 0.0
        return 3 * forward - saved + (forward - head if recompute else 0.0)

    def with_sequence(self, sequence: int) -> ModelShape:
        """Return the model on sequences of another length."""
        return replace(self, sequence=sequence)


def gpt_shape(
    layers: int, hidden: int, heads: int, *, sequence: int, vocabulary: int, name: str = "", biases: bool = True
) -> ModelShape:
    """Return the shape of GPT-2's kind: four times as wide inside, learned positions, tied head.

    Raises:
        ConfigError: the width is no multiple of the heads.
    """
    if hidden % heads:
        raise ConfigError(f"hidden: expected a multiple of heads ({heads}), found {hidden}; choose other heads")
    return ModelShape(
        name=name or f"{layers} layers of {hidden}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        sequence=sequence,
        feed_forward=4 * hidden,
        key_value_heads=heads,
        head_width=hidden // heads,
        positions=sequence,
        biases=biases,
        fused_attention=True,
    )


def llama_shape(
    name: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    key_value_heads: int,
    feed_forward: int,
    vocabulary: int,
    sequence: int,
    experts: int = 1,
    experts_per_token: int = 1,
    tied: bool = False,
    attention_biases: bool = False,
) -> ModelShape:
    """A model of Llama's kind: gated network, rotary positions, root-mean-square norms, no biases."""
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        sequence=sequence,
        feed_forward=feed_forward,
        key_value_heads=key_value_heads,
        head_width=hidden // heads,
        gated=True,
        experts=experts,
        experts_per_token=experts_per_token,
        tied=tied,
        biases=False,
        attention_biases=attention_biases,
        norm_vectors=1,
    )


def padded(parameters: Sequence[int]) -> int:
    """Return the elements of a block that has these parameters: each is padded."""
    return sum(-(-count // BLOCK_ALIGNMENT_ELEMENTS) * BLOCK_ALIGNMENT_ELEMENTS for count in parameters)


def matrices(model: ModelShape) -> list[tuple[int, int, float]]:
    """(columns, inner, share of the tokens) of a layer's weight matrices, each of which is a module."""
    query, key_value = model.heads * model.head_width, model.key_value_heads * model.head_width
    share = model.experts_per_token / model.experts
    widening = [(model.feed_forward, model.hidden, share)] * (2 if model.gated else 1)
    network = [*widening, (model.hidden, model.feed_forward, share)] * model.experts
    inputs = [query + 2 * key_value] if model.fused_attention else [query, key_value, key_value]
    return [*[(columns, model.hidden, 1.0) for columns in inputs], (model.hidden, query, 1.0), *network]


def products(model: ModelShape, parallel: int = 1) -> list[tuple[float, float, float]]:
    """(columns, inner, share of the tokens) of a layer's matrix products on one of ``parallel`` GPUs."""
    query = model.heads * model.head_width / parallel
    key_value = 2 * max(model.key_value_heads / parallel, 1) * model.head_width
    wide = model.feed_forward / parallel
    # Experts see a share of the tokens each, one after the other.
    share = model.experts_per_token / model.experts
    network = [((2 if model.gated else 1) * wide, model.hidden, share), (model.hidden, wide, share)] * model.experts
    return [(query + key_value, model.hidden, 1.0), (model.hidden, query, 1.0), *network]
