"""Move a model into a session's store, in place, and read it back."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from luwu.errors import ConfigError
from luwu.store.manifest import DEFAULT_CHUNK_ELEMENTS
from luwu.worker.flatten import Unit, flatten, manifest_of
from luwu.worker.forward import RootForward, UnitForward
from luwu.worker.gradients import Gradients
from luwu.worker.initialise import Init, Initialiser, drop_values, write_unit
from luwu.worker.interface import Endpoint, Session
from luwu.worker.micro_batches import MicroBatches
from luwu.worker.residence import Residence
from luwu.worker.runtime import RUNTIME_ATTRIBUTE, Runtime
from luwu.worker.select import Blocks, select_modules
from luwu.worker.staging import make_staging
from luwu.worker.window import Window

_DTYPES = (torch.float32, torch.bfloat16)

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def parallelize(
    model: ModuleT,
    session: Session,
    blocks: Blocks = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    checkpoint: bool = True,
    micro_batch_size: int | None = None,
    init: Init = None,
    seed: int = 0,
) -> ModuleT:
    """Let the model's parameters live in the session's store, in place: they are pulled for use, block by block.

    A fresh store takes the model's values; from one that exists the model takes its values, whatever it had before.
    A model on meta is initialised module by module by ``reset_parameters()`` and ``init``, never whole. Outside of a
    forward and its backward a parameter reads NaN and takes no memory: `full_state_dict` reads the values. Buffers stay
    with the worker.

    Args:
        model: any module; its ``requires_grad`` flags are final. Its state_dict keys stay.
        session: where the parameters live.
        blocks: the modules pulled as one: classes, or patterns of module names such as ``h.*``; of nested matches the
            outermost. None: the class that repeats in a ModuleList or Sequential. The rest forms the root block, which
            a worker holds for the whole step.
        dtype: of parameters and gradients, float32 or bfloat16; the store keeps a float32 master either way.
        device: cpu or cuda: where forward and backward run.
        checkpoint: recompute each unit's forward in backward rather than keep its activations.
        micro_batch_size: rows of the batch that a unit computes at a time. The model is called with the whole batch;
            each unit cuts it, by the first dimension of its arguments, runs slice after slice while its parameters are
            there, and adds the gradients up: a step moves the same bytes whatever the batch, and inside a unit memory
            is that of these rows. Losses differ from those of the whole batch by rounding alone. None: all rows.
        init: called on each module on meta that has parameters or buffers of its own, after its ``reset_parameters()``.
        seed: of the random numbers for modules on meta: the same bits at any number of workers, and for any choice of
            blocks unless a module's ``reset_parameters()`` writes to modules inside it that are units of their own.

    Returns:
        The same model.

    Raises:
        ConfigError: an argument cannot work, or a parameter cannot be stored or initialised.
        ManifestMismatchError: the store was made for another model.
        MemoryBudgetError: the session's memory is too small for the model.
    """
    where = torch.device(device)
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype: expected torch.float32 or torch.bfloat16, found {dtype}")
    if hasattr(model, RUNTIME_ATTRIBUTE):
        raise ConfigError("model: expected one that is not parallelized, found one that is; build it anew")
    units = flatten(model, select_modules(model, blocks))
    if not any(unit.blocks for unit in units):
        raise ConfigError(f"model: expected parameters, found none in {type(model).__name__}")
    micro_batches = MicroBatches(units, micro_batch_size)
    manifest = manifest_of(units, dtype, DEFAULT_CHUNK_ELEMENTS)
    fresh = session.attach(manifest, shared_window=where.type == "cuda")
    endpoint = session.endpoint
    arena = torch.frombuffer(endpoint.register(endpoint.arena_bytes), dtype=torch.uint8)
    staging = make_staging(where, torch.frombuffer(endpoint.window, dtype=torch.uint8), arena)
    with torch.inference_mode(False):
        initialiser = Initialiser(model, init, seed)
        if fresh and session.rank == 0:
            _initialise(units, initialiser, endpoint, arena)
            session.initialised()
        for unit in units:
            drop_values(unit, dtype, staging.device)
        initialiser.initialise_buffers()
        _move_buffers(model, staging.device)
    residence = Residence(units, Window(endpoint, staging, dtype), dtype, staging.device)
    gradients = Gradients(units, endpoint, arena[: endpoint.gradient_bytes], staging, dtype)
    runtime = Runtime(units, session, residence, gradients, micro_batches, checkpoint=checkpoint)
    for unit in units:
        wrapped = RootForward(runtime, unit) if unit is units[0] else UnitForward(runtime, unit)
        object.__setattr__(unit.module, "forward", wrapped)
    object.__setattr__(model, RUNTIME_ATTRIBUTE, runtime)
    return model


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Read every parameter and persistent buffer from the store and the worker, to the CPU.

    Returns:
        Clones under the names of ``model.state_dict()``, parameters in the job's dtype; tied names share one tensor.

    Raises:
        ConfigError: the model is not parallelized.
        StepOrderError: between backward and ``optim.step()``.
    """
    runtime = runtime_of(model)
    values: dict[int, Tensor] = {}
    for unit in runtime.units:
        with torch.no_grad(), runtime.reading(unit):
            for block in unit.blocks:
                for slot in block.slots:
                    values[id(slot.parameter)] = slot.parameter.detach().to("cpu", copy=True)
    return {
        name: values[id(tensor)] if id(tensor) in values else tensor.detach().to("cpu", copy=True)
        for name, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor)  # a module's extra state may be anything
    }


def runtime_of(model: nn.Module) -> Runtime:
    """Return what drives a parallelized model.

    Raises:
        ConfigError: the model is not parallelized.
    """
    runtime = getattr(model, RUNTIME_ATTRIBUTE, None)
    if not isinstance(runtime, Runtime):
        raise ConfigError(
            f"model: expected a parallelized one, found {type(model).__name__}; call luwu.parallelize first"
        )
    return runtime


def _initialise(units: list[Unit], initialiser: Initialiser, endpoint: Endpoint, arena: Tensor) -> None:
    initialiser.check(units)
    for unit in units:
        initialiser.initialise_unit(unit)
        write_unit(unit, endpoint, arena)
        drop_values(unit, torch.float32, torch.device("cpu"))
    endpoint.wait(endpoint.finish_initialise())


def _move_buffers(model: nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device != device:
                module._buffers[name] = buffer.to(device)
