"""Base of all optimizers of a parallelized model: torch's interface to states that live in the store.

An optimizer is one small file beside this one, see docs/optimizers.md.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, get_args, overload

import torch
from torch import Tensor, nn

from luwu.core.errors import AttemptVoidError, ConfigError, NonFiniteError
from luwu.core.protocols import HyperParameters, StepDriver
from luwu.optim.groups import driver_of, driver_of_groups, segments_of
from luwu.optim.random_state import RandomState

Wait = Literal["answer", "durable"]
"""Ways of `StoreOptimizer.step` to wait: for the server's answer, or for that and the disk."""

ParameterGroups = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]

_LOWER = "the store is at the last good step: lower the learning rate, or look at the data of these steps"
_GO_BACK = (
    "and no step since this start was good, so the parameters may be at fault already: go back to a snapshot (luwu "
    "snapshot list, restore), or start anew in another folder; else lower the learning rate, or look at the data"
)
"""Advice after too many steps that were rolled back in a row."""


class StoreOptimizer(torch.optim.Optimizer):
    """An optimizer whose states are in the store and whose work the server does.

    Updates begin during backward, so hyper-parameters are read when the forward begins, and `step` waits for the server
    to decide. Schedulers work as usual: change hyper-parameters between `step` and the next forward. A step whose
    gradients are not finite is rolled back by the server and the run goes on; `last_step_committed` tells. With float16
    blocks backward is ``optim.scale(loss).backward()``. State is in the store and so not in ``state_dict()``. `step`
    may return before the step is on the disk: the next one waits for that, or where the server's ``durable`` is not
    ``step``, after a commit point alone. ``step(wait="durable")`` waits for the disk in any case.

    A subclass names its ``kind`` for the server and the store's manifest, the ``order`` in which the server's
    part takes a group's settings, and the ``states`` that the store keeps of each parameter, in the order of its
    planes, by torch's names. ``same_states`` is torch's optimizer that keeps the same ones, with a step for each
    parameter, if there is one: checkpoints of torch.distributed.checkpoint go out and come in as its own.

    Args:
        params: a parallelized model, or parameter groups as torch takes them, covering its trainable parameters.
        defaults: default settings of the groups.
        max_grad_norm: the gradient's global norm, over all parameters and averaged over the workers, is clipped to it
            as ``torch.nn.utils.clip_grad_norm_`` does; ``math.inf`` only measures it. None: no clipping.
        max_skipped: number of steps rolled back in a row that raises NonFiniteError; with a scaled loss only those
            count whose scale was 1 or less.

    Raises:
        ConfigError: a value out of range; a trainable parameter in no group; a parameter of another model; a model
            that was parallelized for another optimizer.
    """

    kind: ClassVar[str]
    order: ClassVar[tuple[str, ...]]
    states: ClassVar[tuple[str, ...]]
    same_states: ClassVar[type[torch.optim.Optimizer] | None] = None
    last_step_committed: bool
    last_grad_norm: float | None
    """Global norm of the last step's gradient before clipping: nan if it was not finite, None without clipping."""

    def __init__(
        self,
        params: nn.Module | ParameterGroups,
        defaults: dict[str, Any],
        *,
        max_grad_norm: float | None = None,
        max_skipped: int = 10,
    ) -> None:
        if max_grad_norm is not None and not float(max_grad_norm) > 0.0:
            raise ConfigError(
                f"max_grad_norm: expected a number above 0, or None for no clipping, found {max_grad_norm}"
            )
        if max_skipped < 1:
            raise ConfigError(f"max_skipped: expected at least 1, found {max_skipped}")
        groups: ParameterGroups
        if isinstance(params, nn.Module):
            driver_of(params)
            groups = [parameter for parameter in params.parameters() if parameter.requires_grad]
            if not groups:
                raise ConfigError(f"params: expected trainable parameters, found none in {type(params).__name__}")
        else:
            groups = params
        self._driver: StepDriver | None = None
        super().__init__(groups, defaults)
        for index, group in enumerate(self.param_groups):
            self.check_group(group, f"of parameter group {index}")
        self._driver = driver_of_groups(self.param_groups)
        if self._driver.optimizer != self.kind:
            raise ConfigError(
                f"optimizer: expected {self._driver.optimizer}, whose states the model's store keeps, found "
                f"{self.kind}; call luwu.parallelize(..., optimizer=luwu.{type(self).__name__}) with a new store, or "
                f"make the optimizer that this one is for"
            )
        self._driver.bind_optimizer(
            self._hyper_parameters,
            segments_of(self._driver, self.param_groups),
            None if max_grad_norm is None else float(max_grad_norm),
        )
        self.last_step_committed = True
        self.last_grad_norm = None
        self._max_skipped = max_skipped
        self._skipped = 0
        self._has_committed = False

    @property
    def loss_scale(self) -> float:
        """Factor that `scale` multiplies the loss by now; 1 without float16 blocks. It changes in `step` alone."""
        assert self._driver is not None
        return self._driver.loss_scale

    def scale(self, loss: Tensor) -> Tensor:
        """Have the loss's backward begin with the loss scale instead of 1, which float16 blocks need.

        The server divides gradients by it before it does anything with them. Where one overflows the step is rolled
        back on all workers and the scale halved, as torch.amp.GradScaler does.

        Args:
            loss: loss of any shape; with several, scale their sum.

        Returns:
            The loss, of the same value; without float16 blocks, or without gradients, the loss itself.
        """
        assert self._driver is not None
        return self._driver.scaled(loss)

    _step_supports_amp_scaling = True  # torch's GradScaler then gives its scale to this optimizer, which says:

    @property
    def grad_scale(self) -> float:
        """Factor that torch's GradScaler multiplies by its own scale and sets here. Setting it is refused."""
        return 1.0

    @grad_scale.setter
    def grad_scale(self, scale: object) -> None:
        raise ConfigError(
            "torch.amp.GradScaler: expected none, because gradients are at the server, found one; use "
            "luwu.parallelize(dtype=torch.float16) and optim.scale(loss).backward()"
        )

    def check_group(self, group: dict[str, Any], where: str) -> None:
        """Refuse a group's settings that cannot work with a ConfigError that says ``where``."""
        for name in self.order:
            if name == "betas":
                _check_betas(group["betas"], where)
            elif not (math.isfinite(float(group[name])) and float(group[name]) >= 0.0):
                raise ConfigError(f"{name} {where}: expected a finite number from 0, found {group[name]}")

    @overload
    def step(self, closure: None = None, *, wait: Wait = "answer") -> None: ...

    @overload
    def step(self, closure: Callable[[], float], *, wait: Wait = "answer") -> float: ...

    def step(self, closure: Callable[[], float] | None = None, *, wait: Wait = "answer") -> float | None:
        """Wait until the server has committed the step, or rolled it back.

        Args:
            closure: runs forward and backward on one batch, and returns the loss. When a worker of the run is lost in
                this attempt, it is called again, with torch's random numbers as they were at its first call.
            wait: ``durable`` waits, too, until the step is on the disk, as `Session.wait_durable` does.

        Raises:
            AttemptVoidError: a worker was lost in this attempt, and there is no closure: run the same batch again.
            StepOrderError: no forward and backward since the last step, or hyper-parameters changed in between.
            NonFiniteError: ``max_skipped`` steps in a row were rolled back.
        """
        assert self._driver is not None
        if wait not in get_args(Wait):
            raise ConfigError(f"wait: expected answer or durable, found {wait!r}")
        if closure is None:
            loss, scale = None, self._driver.loss_scale
            self.last_step_committed = self._driver.commit()
        else:
            loss, scale = self._step_with(closure)
        self.last_grad_norm = self._driver.grad_norm
        if self.last_step_committed:
            self._skipped, self._has_committed = 0, True
        elif scale <= 1.0:  # else the scale may have been at fault, and has become smaller
            self._skipped += 1
        if self._skipped >= self._max_skipped:
            raise NonFiniteError(
                f"gradients: expected finite values, found others in {self._skipped} steps in a row, all rolled back; "
                + (_LOWER if self._has_committed else _GO_BACK)
            )
        if wait == "durable":
            self._driver.wait_durable()
        return loss

    def _step_with(self, closure: Callable[[], float]) -> tuple[float, float]:
        """Make attempts until one is not void; return its loss and its loss scale."""
        assert self._driver is not None
        before = RandomState.of_all_gpus()
        while True:
            with torch.enable_grad():
                loss = closure()
            scale = self._driver.loss_scale
            try:
                self.last_step_committed = self._driver.commit()
            except AttemptVoidError:
                before.restore()
                continue
            return loss, scale

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients whose step has not been taken, by rolling the attempt back; there is nothing else to clear."""
        if self._driver is not None:
            self._driver.drop_gradients()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as the constructor does; afterwards groups stay as they are.

        Raises:
            ConfigError: called by anyone else.
        """
        if self._driver is not None:
            raise ConfigError("add_param_group: expected all groups when the optimizer is made, found another later")
        # Without the decorator of torch's method, which would load torch's compiler (docs/decisions/0019-recompute.md).
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    def _hyper_parameters(self) -> list[HyperParameters]:
        return [_flattened(group[name] for name in self.order) for group in self.param_groups]


def _check_betas(betas: Iterable[float], where: str) -> None:
    for position, beta in enumerate(betas):
        if not 0.0 <= float(beta) < 1.0:
            raise ConfigError(f"betas[{position}] {where}: expected 0 <= beta < 1, found {beta}")


def _flattened(values: Iterable[Any]) -> HyperParameters:
    flat: list[float] = []
    for value in values:
        flat += map(float, value) if isinstance(value, (tuple, list)) else [float(value)]
    return tuple(flat)
