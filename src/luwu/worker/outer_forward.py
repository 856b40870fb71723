"""The forward of an outer unit: its values are there for each call, and again for the work behind it in backward.

Nothing is recomputed. If a call cannot be separated from the work around it, the worker keeps a copy of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from luwu.worker.autograd import SavedTensors, backward_id, watch_outputs
from luwu.worker.dtypes import cast_floating
from luwu.worker.flatten import Block, Unit
from luwu.worker.forward import WrappedForward
from luwu.worker.runtime import Runtime


class OuterForward(WrappedForward):
    """A forward of one of an outer unit's modules."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        if self._runtime.mixed:
            args, kwargs = cast_floating((args, kwargs), self._unit.dtype)
        return use_outer(self._runtime, self._unit, lambda: self._original(*args, **kwargs), (args, kwargs))


def use_outer(runtime: Runtime, unit: Unit, compute: Callable[[], Any], inputs: Any) -> Any:
    """Call ``compute``, which needs the unit's values and makes its result of them and of ``inputs``."""
    if not torch.is_grad_enabled() and backward_id() == -1:
        with runtime.reading(unit):
            return runtime.residence.copied_out(unit, compute())
    number = runtime.start_use(unit)
    if number is None:
        runtime.hold(unit)
        return compute()
    use = _Use(runtime, unit, number)
    with runtime.present(unit), SavedTensors(use.owner_of, use.flat_of):
        output = runtime.residence.copied_out(unit, compute())
    given = {id(leaf) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)}
    watch_outputs([leaf for leaf in tree_leaves(output) if id(leaf) not in given], use.start_backward)
    return output


class _Use:
    """A use of an outer unit with gradients; ``number`` counts the uses of a forward from 0."""

    def __init__(self, runtime: Runtime, unit: Unit, number: int) -> None:
        self._runtime = runtime
        self._unit = unit
        self._number = number
        self._attempt = runtime.attempt
        self._begun = False

    def owner_of(self, tensor: Tensor) -> Block | None:
        """Return which of the unit's blocks the tensor's memory belongs to, if any."""
        return self._runtime.residence.owner_of(self._unit, tensor)

    def flat_of(self, block: Block) -> Tensor:
        """Return a block's memory in backward, shape [elements]."""
        self._begun = True
        self._runtime.enter_outer(self._unit, self._attempt, self._number)
        self._runtime.residence.acquire(self._unit)
        return self._runtime.residence.flat(block)

    def start_backward(self, _: Tensor) -> None:
        """Begin the work behind an output. It may need no values, as the work of an embedding."""
        if not self._begun:
            self._begun = True
            self._runtime.enter_outer(self._unit, self._attempt, self._number)
