"""Protocols between rooms: sessions as workers use them, and models as optimizers do; any fitting class will do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from luwu.core.manifest import Manifest
from luwu.core.progress import Activity
from luwu.core.room import Room

if TYPE_CHECKING:  # the launcher does without torch, and the model of `luwu train` without the native part
    from torch import Tensor, nn

    from luwu.core.trace import WorkerTrace

Memory = memoryview | NDArray[np.uint8]
"""Bytes that lie elsewhere; torch.frombuffer makes tensors of them."""

HyperParameters = tuple[float, ...]
"""The settings of one parameter group, in the order in which the server's part of the optimizer takes them."""


LossScale = tuple[float, int]
"""Scale of an attempt's loss, and the number of attempts in a row before it that were committed at the same scale."""

ROLLED_BACK = 0
COMMITTED = 1
PREPARED = 2
NOT_FINITE = 3
VOID = 4
"""Ends of an attempt, as `StepEnd` of control.proto has them: rolled back because a worker asked for it; committed;
prepared by one server of several, which waits for the decision; rolled back because a gradient was not finite; void,
because a worker was lost: all make it again."""


class OptimizerKind(Protocol):
    """Interface of an optimizer, as `parallelize` uses it: the states that the store keeps for it."""

    kind: ClassVar[str]


class DataEndpoint(Protocol):
    """The worker's end of a data plane. Handles are waited for; every wait may raise the server's error."""

    @property
    def window(self) -> Memory:
        """The mapped window, bytes; pulled blocks lie in it at the offset that `wait` returned."""
        ...

    @property
    def arena_bytes(self) -> int:
        """Size of the arena, which first values and gradients travel through."""
        ...

    @property
    def gradient_bytes(self) -> int:
        """Bytes at the front of the arena that gradients may use."""
        ...

    def register(self, nbytes: int) -> Memory:
        """Take the next ``nbytes`` of the arena."""
        ...

    def pull(self, block: int, alone: bool = False) -> int:
        """Ask for a block; `wait` gives its byte offset in the window.

        Within a step all workers pull the same blocks in the same order, but for those that one pulls ``alone``.
        """
        ...

    def release(self, block: int) -> None:
        """Give a pulled block back; its place in the window is then meaningless."""
        ...

    def push(self, block: int, arena_offset: int) -> int:
        """Hand over a block's gradient; once waited for, the buffer may be reused."""
        ...

    def initialise(self, block: int, arena_offset: int) -> int:
        """Hand over a block's first values, float32."""
        ...

    def finish_initialise(self) -> int:
        """Commit step 0, after every block's `initialise`."""
        ...

    def wait(self, handle: int) -> int:
        """Block until the request is done and return its result."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counts since the worker attached: bytes_pulled, bytes_pushed, wait_seconds, busy_seconds.

        Bytes are of whole blocks, their padding included, as the block's dtype has them; they count when a block is
        asked for or handed over. Requests were under way during ``busy_seconds``, and the worker stood still during
        ``wait_seconds`` of them.
        """
        ...


class Endpoint(DataEndpoint, Protocol):
    """The worker's end of the fabric: a data plane, and the beginning and the end of a step."""

    @property
    def data_plane(self) -> DataEndpoint:
        """The data plane alone, which native code calls from its threads; tell its pushes to `note_push`."""
        ...

    def note_push(self, block: int, handle: int) -> None:
        """Count a push that the data plane was asked for, before the attempt's commit."""
        ...

    def begin(
        self,
        groups: Sequence[HyperParameters],
        max_grad_norm: float | None = None,
        loss_scale: LossScale | None = None,
    ) -> bool:
        """Start an attempt at a step with these hyper-parameters, before its first pull.

        The averaged gradient is divided by the loss scale, and its global norm is then clipped to ``max_grad_norm``,
        where there are such. A commit records the loss scale.

        Returns:
            True where this worker must expect no order of pulls: all must pull alike, and another may know of none.
        """
        ...

    @property
    def trace_request(self) -> tuple[int, bool]:
        """Request for records of the attempt that began last: the most records, and whether the trace ends with it."""
        ...

    @property
    def grad_norm(self) -> float | None:
        """Norm before clipping of the last attempt that was waited for; None if it was not computed."""
        ...

    def commit(self, skip: bool = False) -> int:
        """End the attempt; `wait` gives `COMMITTED`, `NOT_FINITE`, `VOID`, or 0: rolled back, as ``skip`` asks."""
        ...


class WorkerSession(Protocol):
    """A worker's connection to a server."""

    @property
    def rank(self) -> int:
        """This worker, from 0."""
        ...

    @property
    def workers(self) -> int:
        """Number of workers in the run."""
        ...

    @property
    def step(self) -> int:
        """Number of committed steps."""
        ...

    @property
    def trace(self) -> WorkerTrace:
        """This worker's part of a trace."""
        ...

    def profile_bytes(self) -> int:
        """Return the most bytes of a profile that the server asks of this worker in the trace that begins; 0: none."""
        ...

    @property
    def endpoint(self) -> Endpoint:
        """The worker's end of the fabric, there once `attach` has returned."""
        ...

    @property
    def loss_scale(self) -> LossScale | None:
        """Loss scale of the store's last committed step; None before `attach`, and where that step had none."""
        ...

    @property
    def room(self) -> Room:
        """Wait for a full disk that this worker itself writes to."""
        ...

    def tell_progress(self, look: Callable[[], Activity | None]) -> None:
        """Begin to tell the server what this worker does, by ``look``, which another thread calls; None ends it."""
        ...

    def has_store(self, manifest: Manifest) -> bool:
        """Return True where a store made for this manifest is there. Called before `attach`."""
        ...

    def attach(self, manifest: Manifest, *, shared_window: bool = False, kept: Sequence[str] = ()) -> bool:
        """Open or create the store for this manifest; True: it is fresh and rank 0 must initialise it.

        ``shared_window``: map the window so that a device can copy from it. ``kept``: blocks, by name, that stay on
        the device, which this worker does not pull whenever it uses them.
        """
        ...

    def wait_durable(self) -> int:
        """Return when the last step that was answered is on the disk; return that step."""
        ...

    def initialised(self) -> None:
        """Tell the server, on rank 0, that the first values are committed."""
        ...

    def set_segments(self, block: int, segments: Sequence[tuple[int, int]]) -> None:
        """Set the optimizer group of each part of a block, before the first step: ascending (end_element, group)."""
        ...

    def count_step(self, committed: bool) -> None:
        """Count an attempt that has ended."""
        ...


class Weights(Protocol):
    """Values to start from, by the names of the model's parameters and persistent buffers."""

    def has(self, name: str) -> bool:
        """Return True where there are values of this name."""
        ...

    def read(self, name: str) -> Tensor:
        """Return the values, of the shape that the model has, on the CPU; raises CheckpointError."""
        ...


DRIVER_ATTRIBUTE = "_luwu_runtime"
"""Name under which a parallelized model, and each of its trainable parameters, keep their `StepDriver`."""


class TrainablePart(NamedTuple):
    """A trainable parameter in its block: up to ``end_element``, padding behind it included."""

    parameter: nn.Parameter
    name: str
    end_element: int


class StepDriver(Protocol):
    """Interface of a parallelized model, as an optimizer uses it. The worker's runtime has it."""

    optimizer: str
    """Kind of the optimizer whose states the model's store keeps."""

    @property
    def grad_norm(self) -> float | None:
        """Global norm before clipping of the last attempt's gradient; None without clipping, or if it was given up."""
        ...

    @property
    def loss_scale(self) -> float:
        """Factor of the loss in this attempt, or in the next one; 1 without float16 blocks."""
        ...

    def trainable_parts(self) -> dict[int, list[TrainablePart]]:
        """Return the parameters of each trainable block, in the order in which they lie there."""
        ...

    def bind_optimizer(
        self,
        hyper_parameters: Callable[[], list[HyperParameters]],
        segments: dict[int, list[tuple[int, int]]],
        max_grad_norm: float | None = None,
    ) -> None:
        """Take hyper-parameters from here at the start of each attempt; ``segments``: (end_element, group) by block."""
        ...

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss, of the same value, whose backward is that of the scaled loss."""
        ...

    def commit(self) -> bool:
        """End the attempt; True if the server committed it, False if it rolled it back."""
        ...

    def drop_gradients(self) -> None:
        """Roll back an attempt whose backward has run."""
        ...

    def wait_durable(self) -> None:
        """Return when the last step that was answered is on the disk."""
        ...
