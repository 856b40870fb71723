"""The forward methods that stand in front of a model's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import update_wrapper
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from luwu.errors import StepOrderError
from luwu.worker.autograd import SavedTensors, mark_unit_end, watch_outputs
from luwu.worker.buffers import BufferHistory
from luwu.worker.caches import is_cache, without_caches
from luwu.worker.flatten import Block, Unit
from luwu.worker.rules import why_no_part
from luwu.worker.runtime import Runtime
from luwu.worker.uncopyable import Uncopyable


class WrappedForward(Uncopyable):
    """A module's forward with the module's values around it; its signature is the original's."""

    def __init__(self, runtime: Runtime, unit: Unit, module: nn.Module) -> None:
        self._runtime = runtime
        self._unit = unit
        self._original: Callable[..., Any] = module.forward
        update_wrapper(cast(Callable[..., Any], self), self._original)


class RootForward(WrappedForward):
    """The model's forward: with gradients it starts an attempt at a step, without it only pulls."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        runtime, root = self._runtime, self._unit
        if not torch.is_grad_enabled():
            with runtime.evaluation():
                return runtime.residence.copied_out(root, self._original(*args, **kwargs))
        with runtime.training():
            attempt = runtime.attempt
            output = runtime.residence.copied_out(root, self._original(*args, **kwargs))
        watch_outputs(output, lambda _: runtime.enter_backward(attempt))
        return output


class PartForward(WrappedForward):
    """The forward of a module outside of the units that holds the root's parameters, or units: an encoder, a head.

    Within the model's forward it is the module's own. Called alone, as `generate` of an encoder-decoder does, it pulls.
    """

    def __init__(self, runtime: Runtime, root: Unit, name: str, module: nn.Module) -> None:
        super().__init__(runtime, root, module)
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        runtime, root = self._runtime, self._unit
        if runtime.residence.has(root):
            return self._original(*args, **kwargs)
        if torch.is_grad_enabled():
            raise StepOrderError(why_no_part(self._name))
        with runtime.evaluation():
            return runtime.residence.copied_out(root, self._original(*args, **kwargs))


class UnitForward(WrappedForward):
    """A unit's forward: values are there while it runs, and again while its backward runs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the unit."""
        runtime, unit = self._runtime, self._unit
        if not torch.is_grad_enabled():
            with runtime.reading(unit):
                return runtime.residence.copied_out(unit, self._original(*args, **kwargs))
        leaves, structure = tree_flatten((args, kwargs), is_leaf=is_cache)
        leaves = without_caches(leaves, unit.name, recomputed=runtime.checkpoint)
        call = _UnitCall(runtime, unit, self._original, structure)
        mark_unit_end(leaves, call.end)
        if runtime.checkpoint:
            output = checkpoint(call.run, *leaves, use_reentrant=False)
        else:
            with SavedTensors(call.owner_of, call.flat_of):
                output = call.run(*leaves)
        watch_outputs(output, call.start_backward)
        return output


class _UnitCall:
    """One forward of a unit with gradients, and its backward. ``structure`` tells how leaves make up the arguments."""

    def __init__(self, runtime: Runtime, unit: Unit, original: Callable[..., Any], structure: Any) -> None:
        self._runtime = runtime
        self._unit = unit
        self._original = original
        self._structure = structure
        self._attempt = runtime.start_call(unit)
        self._buffers = BufferHistory(unit.module) if runtime.checkpoint else None
        self._forward_done = False

    def run(self, *leaves: Any) -> Any:
        """Run the unit; called again in backward, when checkpointed, values then stay until the unit's end."""
        args, kwargs = tree_unflatten(leaves, self._structure)
        if self._forward_done:
            # The checkpoint may end this call early, by an exception of its own.
            self._runtime.enter_unit(self._unit, self._attempt)
            with self._buffers.recompute() if self._buffers else nullcontext():
                return self._compute(args, kwargs)
        self._forward_done = True
        with self._runtime.present(self._unit), self._buffers.forward() if self._buffers else nullcontext():
            return self._compute(args, kwargs)

    def start_backward(self, _: Tensor) -> None:
        """Before the work behind one of the unit's outputs, which may be another unit's when it was only passed on."""
        if not self._runtime.finished(self._unit, self._attempt):
            self._runtime.enter_unit(self._unit, self._attempt)

    def end(self, gradients: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
        """After the unit's work in backward; returns the gradients of its inputs."""
        self._runtime.enter_backward(self._attempt)
        own = self._runtime.residence.copied_out(self._unit, gradients)
        self._runtime.finish_unit(self._unit)
        return tuple(own)

    def owner_of(self, tensor: Tensor) -> Block | None:
        """Return which of the unit's blocks the tensor's memory belongs to, if any."""
        return self._runtime.residence.owner_of(self._unit, tensor)

    def flat_of(self, block: Block) -> Tensor:
        """Return a block's memory in backward, shape [elements]."""
        self._runtime.enter_unit(self._unit, self._attempt)
        return self._runtime.residence.flat(block)

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._runtime.residence.copied_out(self._unit, self._original(*args, **kwargs))
