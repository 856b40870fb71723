"""The places where the worker meets autograd: a unit's end in backward, and what autograd saves of parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from luwu.worker.flatten import Block


class _UnitEnd(torch.autograd.Function):
    """Identity over a unit's inputs; its backward runs when the unit has no more work in this backward.

    The engine runs the ready node that was created last, and everything inside the unit is created after this node and
    needs nothing older, so when this node's turn comes the unit's other nodes have all run, those for parameters too.
    """

    @staticmethod
    def forward(ctx: Any, ended: Callable[[tuple[Tensor | None, ...]], tuple[Any, ...]], *inputs: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.ended = ended
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return None, *ctx.ended(gradients)


def mark_unit_end(leaves: list[Any], ended: Callable[[tuple[Tensor | None, ...]], tuple[Any, ...]]) -> bool:
    """Replace, in place, the leaves that need a gradient, so that ``ended`` runs at the end of the unit's backward.

    ``ended`` is given the gradients of these leaves, and returns them. False if there are no such leaves.
    """
    positions = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not positions:
        return False
    marked = cast(tuple[Tensor, ...], _UnitEnd.apply(ended, *(leaves[index] for index in positions)))
    for index, leaf in zip(positions, marked, strict=True):
        leaves[index] = leaf
    return True


def watch_outputs(output: Any, started: Callable[[Tensor], None]) -> None:
    """Run ``started`` in backward, before the work behind each tensor of ``output`` that has a gradient."""

    def watch(tensor: Tensor) -> Tensor:
        if tensor.grad_fn is not None:  # a hook on a leaf would stay there for ever
            tensor.register_hook(started)
        return tensor

    tree_map_only(Tensor, watch, output)


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Run ``callback`` once, when the backward that is running now has finished."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def backward_id() -> int:
    """Return the running backward's number, or -1 outside of backward."""
    return int(torch._C._current_graph_task_id())


def saved_tensors_are_seen() -> bool:
    """Return True where hooks, such as a checkpoint's, see what autograd saves now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


@dataclass(frozen=True)
class _Reference:
    """Autograd's reference to a tensor in the window: its place in its block."""

    block: Block
    size: torch.Size
    stride: tuple[int, ...]
    storage_offset: int
    dtype: torch.dtype


@dataclass(frozen=True)
class _Kept:
    """Any other tensor that autograd keeps. Hooks switch torch's own check for later changes off, so we check."""

    tensor: Tensor
    version: int


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """While active, tensors in the window are saved as references to their block, and looked up again in backward.

    ``owner_of`` tells the block that a tensor's memory belongs to, if any; ``flat_of`` returns that block's current
    memory in backward, shape [elements], pulling it if need be.
    """

    def __init__(self, owner_of: Callable[[Tensor], Block | None], flat_of: Callable[[Block], Tensor]) -> None:
        def pack(tensor: Tensor) -> _Reference | _Kept:
            block = owner_of(tensor)
            if block is None:
                # Detached: a node that kept its own output would never be freed.
                return _Kept(tensor.detach() if tensor.grad_fn is not None else tensor, tensor._version)
            return _Reference(block, tensor.size(), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)

        def unpack(saved: _Reference | _Kept) -> Tensor:
            if isinstance(saved, _Reference):
                flat = flat_of(saved.block).view(saved.dtype)
                return flat.as_strided(saved.size, saved.stride, saved.storage_offset)
            if saved.tensor._version != saved.version:
                raise RuntimeError(
                    f"a tensor of shape {list(saved.tensor.shape)} needed for backward was changed in place: "
                    f"expected version {saved.version}, found {saved.tensor._version}"
                )
            return saved.tensor

        super().__init__(pack, unpack)
