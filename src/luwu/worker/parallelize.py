"""Move a model into a session's store, in place, and read it back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from luwu.control.waiting import saying
from luwu.core.errors import ConfigError
from luwu.core.manifest import DEFAULT_OPTIMIZER
from luwu.core.protocols import DRIVER_ATTRIBUTE, Endpoint, OptimizerKind, Weights, WorkerSession
from luwu.optim.groups import driver_of
from luwu.worker.clipping import watch_clipping
from luwu.worker.compiled import RefuseCompile
from luwu.worker.devices import choose_device
from luwu.worker.dtypes import BlockDtypes, check_dtype
from luwu.worker.flatten import Unit
from luwu.worker.forward import PartForward, RootForward, UnitForward, WrappedForward
from luwu.worker.initialise import Init, Initialiser, drop_values, write_unit
from luwu.worker.kept import KeptBlocks, choose_kept
from luwu.worker.layout import choose_layout
from luwu.worker.loss_scale import LossScaler, LossScaling
from luwu.worker.micro_batches import MicroBatches
from luwu.worker.offload import Where, make_offload
from luwu.worker.outer_forward import OuterForward
from luwu.worker.runtime import Runtime
from luwu.worker.saving import guard_loading, guard_saving, guard_state_dict
from luwu.worker.select import Blocks, modules_outside
from luwu.worker.vector_functions import choose_vector_functions
from luwu.worker.watched import begin_to_watch
from luwu.worker.weights import CheckpointWeights

ModuleT = TypeVar("ModuleT", bound=nn.Module)

log = logging.getLogger(__name__)


def parallelize(
    model: ModuleT,
    session: WorkerSession,
    blocks: Blocks = None,
    *,
    optimizer: type[OptimizerKind] | None = None,
    dtype: torch.dtype = torch.float32,
    block_dtypes: BlockDtypes | None = None,
    loss_scaling: LossScaling | None = None,
    device: torch.device | str = "cpu",
    device_memory: int | str | None = None,
    checkpoint: bool = True,
    micro_batch_size: int | None = None,
    offload: Where = None,
    init: Init = None,
    seed: int = 0,
    weights: str | Path | None = None,
) -> ModuleT:
    """Move the model's parameters into the session's store, in place: they are pulled for use, block by block.

    A fresh store takes the model's values. From a store that exists the model takes its values, whatever it had before.
    A model on meta is initialised module by module, never whole: by ``reset_parameters()``, by the initialisation of
    transformers and peft for their modules, and by ``init``. Outside of a forward and its backward a parameter reads
    NaN and takes no memory: `full_state_dict` reads the values. Buffers stay with the worker.

    Args:
        model: any module; its ``requires_grad`` flags are final. Its state_dict keys stay. Blocks may be compiled, by
            ``block.compile()`` before; the model may not.
        session: session whose store holds the parameters.
        blocks: the modules whose parameters become blocks: classes, or patterns of module names such as ``h.*``; of
            nested matches the outermost counts. None: the classes that repeat in a ModuleList or Sequential.
            Embeddings, heads and other modules with at least a quarter of the largest block's parameters become blocks,
            too. The rest forms the root block, which a worker holds for the whole step. A store that exists keeps its
            blocks.
        optimizer: class of the optimizer to come, such as ``luwu.Lion``, whose states a fresh store makes room for;
            None: luwu.AdamW.
        dtype: dtype of parameters and gradients: float32, bfloat16 or float16. The store keeps a float32 master in any
            case. With float16, in any block, call ``optim.scale(loss).backward()``.
        block_dtypes: other dtypes for some blocks, by class, pattern of module names as in ``blocks``, or ``<root>``,
            such as ``{"lm_head": torch.float32}``; of entries that match the same block the first counts. A module in
            the root that an entry matches becomes a block of its own. Inputs of a block are converted to its dtype.
        loss_scaling: settings of the loss scale where blocks are float16; None: those of torch.amp.GradScaler.
        device: device of forward and backward, cpu or cuda. ``cuda`` without a number is the GPU of this rank, by
            torchrun's LOCAL_RANK.
        device_memory: bytes of a GPU's memory, such as ``8GiB``, for blocks that stay there between their uses instead
            of being pulled again: frozen ones for good, others for a step, and while a model is evaluated or generates.
            Over UDP all workers give the same. None: every block is pulled for each use.
        checkpoint: recompute each block's forward in backward rather than keep its activations.
        micro_batch_size: rows of the batch that a block computes at a time. The model is called with the whole batch.
            Each block cuts it, by the first dimension of its arguments, runs slice after slice while its parameters are
            there, and adds the gradients up. A step moves the same bytes whatever the batch, and inside a block memory
            is that of these rows. Losses differ from those of the whole batch by rounding alone. None: all rows.
        offload: place where the inputs of blocks, which checkpointing keeps, wait for backward. ``host``: pinned memory
            of a GPU's host; a folder: a file without a name on its disk; None: the device.
        init: function called on each module on meta with parameters or buffers of its own, after its own
            initialisation.
        seed: seed of the random numbers for modules on meta. The bits are the same for any number of workers, and for
            any choice of blocks, unless a module's initialisation writes to modules inside it that are blocks of their
            own.
        weights: a safetensors file, the index of several, or a folder with either. A fresh store takes the values from
            it, tensor by tensor, and the model its persistent buffers.

    Returns:
        The same model.

    Raises:
        CheckpointError: ``weights`` cannot be read, or are not the model's.
        ConfigError: an argument cannot work, or a parameter cannot be stored or initialised.
        DeviceError: the GPU's driver is missing, or refuses memory.
        ManifestMismatchError: the store was made for another model or another optimizer.
        MemoryBudgetError: the session's memory is too small for the model.
    """
    where = choose_device(device)
    choose_vector_functions()
    check_dtype(dtype, "dtype")
    room = where.room_for_blocks(device_memory)
    if hasattr(model, DRIVER_ATTRIBUTE):
        raise ConfigError("model: expected one that is not parallelized, found one that is; build it anew")
    units, manifest = choose_layout(model, blocks, dtype, block_dtypes, _kind_of(optimizer), session.has_store)
    micro_batches = MicroBatches(units, micro_batch_size)
    offloaded = make_offload(offload, where.torch, session.room, checkpoint=checkpoint)
    source: Weights | None = None if weights is None else CheckpointWeights(model, weights)
    kept = choose_kept(units, room)
    fresh = session.attach(manifest, shared_window=where.copies, kept=[block.name for block in kept])
    endpoint = session.endpoint
    arena = torch.frombuffer(endpoint.register(endpoint.arena_bytes), dtype=torch.uint8)
    with torch.inference_mode(False):
        initialiser = Initialiser(model, init, seed, source)
        if fresh and session.rank == 0:
            _initialise(units, initialiser, endpoint, arena)
            session.initialised()
        for unit in units:
            drop_values(unit, where.torch)
        initialiser.initialise_buffers()
        _move_buffers(model, where.torch)
    # Only now: the arena's memory is other memory once first values have gone through it.
    staging = where.staging(units, endpoint, arena[: endpoint.gradient_bytes], kept)
    scales = any(block.dtype is torch.float16 for unit in units for block in unit.blocks)
    runtime = Runtime(
        units,
        session,
        staging,
        micro_batches,
        optimizer=manifest.optimizer,
        checkpoint=checkpoint,
        offload=offloaded,
        kept=KeptBlocks(kept),
        scaler=LossScaler(loss_scaling or LossScaling(), session.loss_scale) if scales else None,
    )
    _wrap(model, units, runtime)
    return model


def full_state_dict(model: nn.Module, *, trainable_only: bool = False) -> dict[str, Tensor]:
    """Read every parameter and persistent buffer from the store and the worker, to the CPU.

    Args:
        model: a parallelized one.
        trainable_only: leave out frozen parameters and all buffers: what a peft model saves.

    Returns:
        Clones under the names of ``model.state_dict()``, parameters in their blocks' dtypes; tied names share a tensor.

    Raises:
        ConfigError: the model is not parallelized.
        StepOrderError: between backward and ``optim.step()``.
    """
    runtime = runtime_of(model)
    values: dict[int, Tensor] = {}
    for unit in runtime.units:
        if trainable_only and unit.trainable is None:
            continue
        with torch.no_grad(), runtime.reading(unit):
            for block in unit.blocks:
                if block.trainable or not trainable_only:
                    for slot in block.slots:
                        values[id(slot.parameter)] = slot.parameter.detach().to("cpu", copy=True)
    return {
        name: values[id(tensor)] if id(tensor) in values else tensor.detach().to("cpu", copy=True)
        for name, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor)  # a module's extra state may be anything
        and (id(tensor) in values or not trainable_only)
    }


def runtime_of(model: nn.Module) -> Runtime:
    """Return what drives a parallelized model.

    Raises:
        ConfigError: the model is not parallelized.
    """
    runtime = driver_of(model)
    assert isinstance(runtime, Runtime)
    return runtime


def _wrap(model: nn.Module, units: list[Unit], runtime: Runtime) -> None:
    """Replace the model's methods that need values."""
    root, others = units[0], units[1:]
    wrapped: list[tuple[nn.Module, WrappedForward]] = [(model, RootForward(runtime, root, model))]
    for unit in others:
        kind = OuterForward if unit.outer else UnitForward
        wrapped += [(module, kind(runtime, unit, module)) for module in unit.modules]
    for name, part in modules_outside(model, (module for unit in others for module in unit.modules)):
        wrapped.append((part, PartForward(runtime, root, name, part)))
    for module, forward in wrapped:
        forward.install(module)
    for unit in units:
        for module in unit.modules:
            object.__setattr__(module, "compile", RefuseCompile("" if unit is root else unit.name))
    guard_saving(model)
    guard_state_dict(model, units)
    guard_loading(units)
    watch_clipping(units)
    for unit in units:
        if unit.outer:
            begin_to_watch(unit, runtime)
    object.__setattr__(model, DRIVER_ATTRIBUTE, runtime)
    if not hasattr(model, "no_sync"):  # Accelerate and others look for it there
        object.__setattr__(model, "no_sync", runtime.accumulating)


def _kind_of(optimizer: type[OptimizerKind] | None) -> str:
    if optimizer is None:
        return DEFAULT_OPTIMIZER
    kind = getattr(optimizer, "kind", None)
    if not isinstance(kind, str):
        raise ConfigError(f"optimizer: expected an optimizer class of luwu such as luwu.Lion, found {optimizer!r}")
    return kind


def _initialise(units: list[Unit], initialiser: Initialiser, endpoint: Endpoint, arena: Tensor) -> None:
    initialiser.check(units)
    for unit in units:
        initialiser.initialise_unit(unit)
        write_unit(unit, endpoint, arena)
        drop_values(unit, torch.device("cpu"), torch.float32)
    with saying(log, "the server to make the first values durable", None):
        endpoint.wait(endpoint.finish_initialise())


def _move_buffers(model: nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device != device:
                module._buffers[name] = buffer.to(device)


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Context manager: a backward inside pushes nothing; its gradients are added up (as in DistributedDataParallel).

    The next backward outside pushes the sums along with its own gradients; where there is none, ``optim.step()`` does,
    so the whole of a training loop may run within, at the price that no update overlaps a backward. One attempt at a
    step spans all passes: hyper-parameters are read at its first forward, ``optim.zero_grad()`` drops all of it, and
    the workers of a run make equally many. Sums are float32, in the order of the passes.

    The sums take 4 bytes of host memory for every trainable parameter, and every pass pulls all parameters again: for a
    larger batch ``parallelize(micro_batch_size=...)`` does neither.

    Raises:
        ConfigError: the model is not parallelized.
        MemoryBudgetError: the sums do not fit the memory that is free.
    """
    with runtime_of(model).accumulating():
        yield
