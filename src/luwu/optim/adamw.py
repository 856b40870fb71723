"""AdamW as torch users know it; the state lives in the store and the server does the work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn

from luwu.errors import ConfigError, NonFiniteError
from luwu.worker.flatten import Slot
from luwu.worker.interface import HyperParameters
from luwu.worker.parallelize import runtime_of
from luwu.worker.runtime import RUNTIME_ATTRIBUTE, Runtime

ParameterGroups = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101) of a parallelized model, with torch's defaults.

    Updates begin during backward, so hyper-parameters are read when the forward begins, and `step` waits for the server
    to commit. Schedulers work as usual: change hyper-parameters between `step` and the next forward. A step whose
    gradients are not finite is rolled back by the server and the run goes on; `last_step_committed` tells. State is in
    the store and so not in ``state_dict()``.

    Args:
        params: a parallelized model, or parameter groups as torch takes them, covering its trainable parameters.
        lr: learning rate.
        betas: decay rates of the two moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled weight decay.
        max_grad_norm: must be None for now.
        max_skipped: so many steps rolled back in a row raise NonFiniteError.

    Raises:
        ConfigError: a value out of range; a trainable parameter in no group; a parameter of another model.
    """

    last_step_committed: bool

    def __init__(
        self,
        params: nn.Module | ParameterGroups,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        max_grad_norm: float | None = None,
        *,
        max_skipped: int = 10,
    ) -> None:
        if max_grad_norm is not None:
            raise ConfigError(
                f"max_grad_norm: expected None, found {max_grad_norm}; clipping by the global norm is not there yet"
            )
        if max_skipped < 1:
            raise ConfigError(f"max_skipped: expected at least 1, found {max_skipped}")
        groups: ParameterGroups
        if isinstance(params, nn.Module):
            runtime_of(params)
            groups = [parameter for parameter in params.parameters() if parameter.requires_grad]
            if not groups:
                raise ConfigError(f"params: expected trainable parameters, found none in {type(params).__name__}")
        else:
            groups = params
        self._runtime: Runtime | None = None
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for index, group in enumerate(self.param_groups):
            _check_group(index, group)
        self._runtime = _runtime_of_groups(self.param_groups)
        self._runtime.bind_optimizer(self._hyper_parameters, _segments(self._runtime, self.param_groups))
        self.last_step_committed = True
        self._max_skipped = max_skipped
        self._skipped = 0

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Wait until the server has committed the step, or rolled it back.

        Raises:
            StepOrderError: no forward and backward since the last step, or hyper-parameters changed in between.
            NonFiniteError: ``max_skipped`` steps in a row were rolled back.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        assert self._runtime is not None
        self.last_step_committed = self._runtime.commit()
        self._skipped = 0 if self.last_step_committed else self._skipped + 1
        if self._skipped >= self._max_skipped:
            raise NonFiniteError(
                f"gradients: expected finite values, found others in {self._skipped} steps in a row, all rolled back; "
                "the store is at the last good step: lower the learning rate, or look at the data of these steps"
            )
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients whose step has not been taken, by rolling the attempt back; there is nothing else to clear."""
        if self._runtime is not None:
            self._runtime.drop_gradients()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as the constructor does; afterwards groups stay as they are.

        Raises:
            ConfigError: called by anyone else.
        """
        if self._runtime is not None:
            raise ConfigError("add_param_group: expected all groups when the optimizer is made, found another later")
        super().add_param_group(param_group)

    def _hyper_parameters(self) -> list[HyperParameters]:
        return [
            (float(group["lr"]), float(group["betas"][0]), float(group["betas"][1]), float(group["eps"]),
             float(group["weight_decay"]))
            for group in self.param_groups
        ]  # fmt: skip


def _check_group(index: int, group: dict[str, Any]) -> None:
    values = {name: group[name] for name in ("lr", "eps", "weight_decay")}
    for name, value in values.items():
        if not (math.isfinite(float(value)) and float(value) >= 0.0):
            raise ConfigError(f"{name} of parameter group {index}: expected a finite number from 0, found {value}")
    for position, beta in enumerate(group["betas"]):
        if not 0.0 <= float(beta) < 1.0:
            raise ConfigError(f"betas[{position}] of parameter group {index}: expected 0 <= beta < 1, found {beta}")


def _runtime_of_groups(groups: list[dict[str, Any]]) -> Runtime:
    """Find the one model whose parameters these are; frozen ones do not count."""
    found: dict[int, Runtime] = {}
    for index, group in enumerate(groups):
        for position, parameter in enumerate(group["params"]):
            if not parameter.requires_grad:
                continue
            runtime = getattr(parameter, RUNTIME_ATTRIBUTE, None)
            if not isinstance(runtime, Runtime):
                raise ConfigError(
                    f"parameter {position} of group {index}: expected one of a parallelized model, found one of shape "
                    f"{list(parameter.shape)} that is not; make the optimizer after luwu.parallelize"
                )
            found[id(runtime)] = runtime
    if len(found) != 1:
        raise ConfigError(f"params: expected trainable parameters of one parallelized model, found {len(found)} models")
    return next(iter(found.values()))


def _segments(runtime: Runtime, groups: list[dict[str, Any]]) -> dict[int, list[tuple[int, int]]]:
    """Map each trainable block to ascending (end_element, group); padding goes with the parameter before it."""
    group_of = {id(parameter): index for index, group in enumerate(groups) for parameter in group["params"]}
    segments: dict[int, list[tuple[int, int]]] = {}
    for unit in runtime.units:
        block = unit.trainable
        if block is None:
            continue
        ends = [slot.offset for slot in block.slots[1:]] + [block.elements]
        ranges: list[tuple[int, int]] = []
        for slot, end in zip(block.slots, ends, strict=True):
            group = _group_of(slot, group_of)
            if ranges and ranges[-1][1] == group:
                ranges.pop()
            ranges.append((end, group))
        segments[block.index] = ranges
    return segments


def _group_of(slot: Slot, group_of: dict[int, int]) -> int:
    group = group_of.get(id(slot.parameter))
    if group is None:
        raise ConfigError(
            f"parameter {slot.name}: expected every trainable parameter in a group, found it in none; add it, or set "
            "its requires_grad to False before luwu.parallelize"
        )
    return group
