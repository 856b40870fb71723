"""The forward methods that stand in front of a model's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import update_wrapper
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from luwu.core.errors import StepOrderError
from luwu.worker.attributes import AttributeHistory
from luwu.worker.autograd import SavedTensors, mark_unit_end, watch_outputs
from luwu.worker.buffers import BufferHistory
from luwu.worker.caches import is_cache, without_caches
from luwu.worker.compiled import compiled_call
from luwu.worker.dtypes import cast_floating
from luwu.worker.flatten import Block, Unit
from luwu.worker.micro_batches import Slices
from luwu.worker.recompute import Recompute, RowState
from luwu.worker.runtime import Runtime
from luwu.worker.step_machine import NOT_HERE
from luwu.worker.uncopyable import Uncopyable


class WrappedForward(Uncopyable):
    """A module's forward with the module's values around it; its signature is the original's.

    Where blocks have several dtypes, what enters a block is converted to its own.
    """

    def __init__(self, runtime: Runtime, unit: Unit, module: nn.Module) -> None:
        self._runtime = runtime
        self._unit = unit
        self._original: Callable[..., Any] = compiled_call(module) or module.forward
        update_wrapper(cast(Callable[..., Any], self), module.forward, updated=())

    def install(self, module: nn.Module) -> None:
        """Replace the module's forward, or the one that ``module.compile()`` made of it."""
        place = "forward" if compiled_call(module) is None else "_compiled_call_impl"
        object.__setattr__(module, place, self)


class RootForward(WrappedForward):
    """Forward of the model: with gradients it starts an attempt at a step, without it only pulls."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        runtime, root = self._runtime, self._unit
        batch = runtime.micro_batches.batch_of(args, kwargs)
        if not torch.is_grad_enabled():
            with runtime.evaluation(), batch:
                return runtime.residence.copied_out(root, self._original(*args, **kwargs))
        with runtime.training(), batch:
            attempt = runtime.attempt
            output = runtime.residence.copied_out(root, self._original(*args, **kwargs))
        watch_outputs(output, lambda _: runtime.enter_backward(attempt))
        return output


class PartForward(WrappedForward):
    """Forward of a module outside of the units that holds the root's parameters, or units: an encoder, a head.

    Within the model's forward it is the module's own. Called alone, as `generate` of an encoder-decoder does, it pulls.
    """

    def __init__(self, runtime: Runtime, root: Unit, name: str, module: nn.Module) -> None:
        super().__init__(runtime, root, module)
        self._name = name
        self._computes = any(parameter is not None for parameter in module._parameters.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        runtime, root = self._runtime, self._unit
        if runtime.mixed and self._computes:
            args, kwargs = cast_floating((args, kwargs), root.dtype)
        if runtime.residence.has(root):
            return self._original(*args, **kwargs)
        if torch.is_grad_enabled():
            raise StepOrderError(f"module {self._name}: {NOT_HERE}")
        with runtime.evaluation():
            return runtime.residence.copied_out(root, self._original(*args, **kwargs))


class UnitForward(WrappedForward):
    """Forward of a unit: values are there while it runs, and again while its backward runs, for all of its slices."""

    _last: _UnitCall | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the unit."""
        runtime, unit = self._runtime, self._unit
        leaves, structure = tree_flatten((args, kwargs), is_leaf=is_cache)
        if runtime.mixed:
            leaves = cast_floating(leaves, unit.dtype)
        if torch.is_grad_enabled():
            leaves = without_caches(leaves, unit.name, recomputed=runtime.checkpoint)
        slices = runtime.micro_batches.cut(unit, leaves, structure)
        if not torch.is_grad_enabled():
            with runtime.reading(unit):
                return slices.join([self._read(part, structure) for part in slices.of(leaves)])
        call = _UnitCall(runtime, unit, self._original, structure)
        if self._last is not None:
            self._last.forget()  # it may have had no backward
        self._last = call
        mark_unit_end(leaves, call.end)
        output = call.forward(leaves, slices)
        watch_outputs(output, call.start_backward)
        return output

    def _read(self, leaves: list[Any], structure: TreeSpec) -> Any:
        args, kwargs = tree_unflatten(leaves, structure)
        return self._runtime.residence.copied_out(self._unit, self._original(*args, **kwargs))


class _UnitCall:
    """Forward of a unit with gradients, and its backward. ``structure`` tells how leaves make up the arguments."""

    def __init__(self, runtime: Runtime, unit: Unit, original: Callable[..., Any], structure: TreeSpec) -> None:
        self._runtime = runtime
        self._unit = unit
        self._original = original
        self._structure = structure
        self._attempt = runtime.start_call(unit)
        self._forward_done = False
        self._histories: list[AttributeHistory] = []

    def forward(self, leaves: list[Any], slices: Slices) -> Any:
        """Run the unit, slice by slice."""
        outputs = []
        state = RowState(self._unit.name)
        with self._runtime.present(self._unit):
            for part in slices.of(leaves):
                if slices.several:
                    self._runtime.backward.expect_part(self._unit)
                self._histories.append(AttributeHistory(self._unit.module))
                outputs.append(self._run_to_keep(part, self._histories[-1], several=slices.several))
                if slices.several:
                    state.check(self._histories[-1])
            output = slices.join(outputs)
        self._forward_done = True
        return output

    def start_backward(self, _: Tensor) -> None:
        """Begin the work behind one of the unit's outputs. The output may be another unit's that was only passed on."""
        if not self._runtime.finished(self._unit, self._attempt):
            self._runtime.enter_unit(self._unit, self._attempt)

    def end(self, gradients: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
        """End the unit's work in backward, and return the gradients of its inputs."""
        self._runtime.enter_backward(self._attempt)
        own = self._runtime.residence.copied_out(self._unit, gradients)
        self._runtime.backward.finish(self._unit)
        self.forget()
        return tuple(own)

    def forget(self) -> None:
        """Drop the noted state from before the forward: there is no recompute any more."""
        for history in self._histories:
            history.forget()

    def owner_of(self, tensor: Tensor) -> Block | None:
        """Return which of the unit's blocks the tensor's memory belongs to, if any."""
        return self._runtime.residence.owner_of(self._unit, tensor)

    def flat_of(self, block: Block) -> Tensor:
        """Return a block's memory in backward, shape [elements]."""
        self._runtime.enter_unit(self._unit, self._attempt)
        return self._runtime.residence.flat(block)

    def _run_to_keep(self, leaves: list[Any], attributes: AttributeHistory, *, several: bool) -> Any:
        """Run the unit, so that its backward can run later."""
        if not self._runtime.checkpoint:
            with attributes.forward() if several else nullcontext(), SavedTensors(self.owner_of, self.flat_of):
                return self._compute(leaves)
        buffers = BufferHistory(self._unit.module)

        def again(leaves: list[Any]) -> None:
            if not self._forward_done:  # a backward of the unit's own within its forward, as of a force field
                self._compute(leaves)
                return
            # Values then stay until the unit's end: the recompute leaves this call by an exception of its own.
            self._runtime.enter_unit(self._unit, self._attempt)
            with buffers.recompute(), attributes.recompute():
                self._compute(leaves)

        offload = self._runtime.offload
        hooks = None if offload is None else offload.hooks()
        with buffers.forward(), attributes.forward():
            return Recompute(self._unit.name, self._compute, again).run(leaves, hooks)

    def _compute(self, leaves: Sequence[Any]) -> Any:
        args, kwargs = tree_unflatten(leaves, self._structure)
        return self._runtime.residence.copied_out(self._unit, self._original(*args, **kwargs))
