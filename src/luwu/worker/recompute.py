"""A unit's forward runs again in backward, and makes there the tensors that autograd would otherwise have kept.

`torch.utils.checkpoint` does the same, but loads torch's compiler (docs/decisions/0019-recompute.md). `RowState` checks
a forward that runs slice by slice.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from luwu.core.errors import ConfigError
from luwu.optim.random_state import RandomState
from luwu.worker.attributes import AttributeHistory

_Work = Callable[[list[Any]], Any]
_Kind = tuple[torch.Size, torch.dtype, torch.device]


class Recompute:
    """Forward of a unit, and its recompute in backward, which starts when backward needs the first saved tensor.

    ``forward`` and ``again`` are called with the list of inputs. ``again`` runs with the forward's autocast settings
    and random numbers; an exception of this class ends it as soon as the last saved tensor is there.
    """

    def __init__(self, unit: str, forward: _Work, again: _Work) -> None:
        self._unit = unit
        self._forward = forward
        self._again = again
        self._saved: list[weakref.ref[_Saved]] = []
        self._kinds: list[_Kind] = []

    def run(self, inputs: list[Any], around_inputs: saved_tensors_hooks | None = None) -> Any:
        """Run the forward and return its output. The inputs are kept until backward, under the hooks given for them."""
        self._surroundings = _Surroundings(inputs)
        with ExitStack() as hooks:
            if around_inputs is not None:
                hooks.enter_context(around_inputs)
            self._inputs = _Inputs(inputs)
        with saved_tensors_hooks(self._note, self._value_of):
            return self._forward(inputs)

    def _note(self, tensor: Tensor) -> _Saved:
        """Take a place for a tensor that autograd saves in the forward. The tensor itself is not kept."""
        saved = _Saved()
        self._saved.append(weakref.ref(saved))
        self._kinds.append(_kind_of(tensor))
        return saved

    def _value_of(self, saved: _Saved) -> Tensor:
        """Return in backward the tensor that was saved at a place. It lives as long as autograd keeps the place.

        So there is one recompute in a backward: another would find buffers and attributes as the first has left them.
        """
        if saved.value is None:
            self._recompute()
        return cast(Tensor, saved.value)

    def _recompute(self) -> None:
        """Run the forward again up to its last saved tensor.

        Raises:
            ConfigError: it saved other tensors than the forward, or fewer.
        """
        found = 0

        def keep(tensor: Tensor) -> Tensor:
            nonlocal found
            expected, kind = self._kinds[found], _kind_of(tensor)
            if kind != expected:
                raise self._other(f"tensor {found}: {_words(kind)} instead of {_words(expected)}")
            # Detached: backward needs the values alone, and the graph of the recompute can go.
            value = tensor.detach() if tensor.requires_grad else tensor
            saved = self._saved[found]()
            if saved is not None:  # autograd may have dropped it since
                saved.value = value
            found += 1
            if found == len(self._kinds):
                raise _AllThere
            return value

        hooks = saved_tensors_hooks(keep, lambda value: value)
        try:
            with self._surroundings.again(), torch.enable_grad(), hooks:
                self._again(self._inputs.get())
        except _AllThere:
            return
        raise self._other(f"{found} saved tensors instead of {len(self._kinds)}")

    def _other(self, difference: str) -> ConfigError:
        return ConfigError(
            f"block {self._unit}: expected the recompute of its forward in backward to do what the forward did, "
            f"found other tensors ({difference}); a module in it depends on state that changes outside of its buffers "
            "and attributes, such as a global variable or a module elsewhere in the model: keep that state in "
            "attributes of modules in the block, or use parallelize(checkpoint=False)"
        )


class _AllThere(BaseException):
    """Ends a recompute. No Exception, so that a module's own ``except Exception`` lets it through."""


class _Saved:
    """The place of a tensor that autograd saved: empty until the recompute. Autograd drops it when its node has run."""

    __slots__ = ("__weakref__", "value")

    def __init__(self) -> None:
        self.value: Tensor | None = None


def _kind_of(tensor: Tensor) -> _Kind:
    return tensor.shape, tensor.dtype, tensor.device


def _words(kind: _Kind) -> str:
    shape, dtype, device = kind
    return f"{list(shape)} {str(dtype).removeprefix('torch.')} on {device}"


class _Inputs:
    """The inputs of a forward, kept as autograd keeps tensors: under the active hooks, and checked for later writes."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._tensors = [index for index, value in enumerate(inputs) if isinstance(value, Tensor)]
        self._others = [None if isinstance(value, Tensor) else value for value in inputs]
        needs_gradient = torch.empty(0, requires_grad=True)
        # The output is kept, not its node alone: torch before 2.13 frees the saved tensors together with the output.
        self._output = _KeepTensors.apply(needs_gradient, *(inputs[index] for index in self._tensors))

    def get(self) -> list[Any]:
        """Return the inputs.

        Raises:
            RuntimeError: one was written in place since.
        """
        inputs = list(self._others)
        for index, tensor in zip(self._tensors, self._output.grad_fn.saved_tensors, strict=True):
            inputs[index] = tensor
        return inputs


class _KeepTensors(torch.autograd.Function):
    """A node that keeps its inputs; nothing is computed from its output, so that it has no backward."""

    @staticmethod
    def forward(ctx: Any, needs_gradient: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


class _Surroundings:
    """Settings of a forward that its recompute needs again: autocast, and the states of random numbers."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        devices = {value.device for value in inputs if isinstance(value, Tensor)}
        self._devices = {device for device in devices if device.type not in ("cpu", "meta")}
        self._random = RandomState.now(self._devices)
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in sorted({"cpu", *(device.type for device in self._devices)})
        ]
        self._autocast_cache = torch.is_autocast_cache_enabled()

    @contextmanager
    def again(self) -> Iterator[None]:
        """Run the recompute inside this context. Random numbers go on afterwards as if it had drawn none."""
        with ExitStack() as settings:
            settings.callback(RandomState.now(self._devices).restore)
            self._random.restore()
            for kind, dtype, enabled in self._autocast:
                settings.enter_context(torch.autocast(kind, dtype, enabled, self._autocast_cache))
            yield


class RowState:
    """Checks the slices of a unit's call: a tensor that one slice puts into an attribute would reach other rows.

    After the call the attribute would also have only the last rows' tensor.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._before: dict[str, Tensor] = {}

    def check(self, history: AttributeHistory) -> None:
        """Check the tensors that the next slice's forward put into attributes.

        Raises:
            ConfigError: an earlier slice set the same attribute to other values.
        """
        for name, value in history.tensors_set().items():
            before = self._before.setdefault(name, value)
            if before is not value and (before.shape != value.shape or not torch.equal(before, value)):
                raise ConfigError(
                    f"block {self._unit}: attribute {name}: expected no tensor that its forward sets for each "
                    "micro-batch anew, found one, which micro_batch_size would take from some rows to others; leave "
                    "micro_batch_size out, or let forward take and return what it keeps"
                )
