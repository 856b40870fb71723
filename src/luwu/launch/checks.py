"""Checks of a run that are made before a process starts and anything is written."""

from __future__ import annotations

from pathlib import Path

from luwu.control.address import parse_host_port
from luwu.core.errors import ConfigError, ManifestMismatchError, MemoryBudgetError
from luwu.core.manifest import element_bytes
from luwu.core.quantities import format_size
from luwu.core.words import counted
from luwu.launch.claiming import find_run_id, make_claim
from luwu.launch.folder import RunFolder, config_file, has_weights
from luwu.launch.settings import Settings
from luwu.models.config_shape import least_shape
from luwu.models.gpt_blocks import gpt_manifest
from luwu.models.shapes import ModelShape
from luwu.server.forecast import least_memory, least_without_states
from luwu.store.folders import StoreIdentity, holds_part, no_store, read_identity, require_stripes
from luwu.store.opening import reader_of
from luwu.store.run_record import Counts, check_claim, missing_store, read_record


def check_store(settings: Settings, folder: RunFolder, *, takes_weights: bool) -> None:
    """Check that a run on this machine may train on its store, if there is one, and has not passed its last step.

    Raises:
        ConfigError: the store is another run's, it is missing although the run has made steps, or the run has made more
            steps than it is to make.
        ManifestMismatchError, StoreCorruptError: the store has another optimizer, dtype or number of folders.
        Others: the store's files cannot be read, see `luwu.errors`.
    """
    stores = folder.stores(settings)
    identity = read_identity(stores[0])
    if identity is None:
        if (takes_weights or folder.steps_made()) and holds_part(stores[0]):
            raise no_store(stores)
        if takes_weights and not folder.config_path.exists():
            raise ConfigError(
                f"--new-run: expected a store with weights in {stores[0]}, found none; check --store, or leave "
                "--new-run out to start afresh"
            )
        if made := folder.steps_made():
            raise missing_store(str(folder.path), made, ", ".join(map(str, stores)))
        return
    _check_shape(settings, stores, identity)
    run_id = find_run_id(settings, folder, stores[0])
    check_claim(stores[0], make_claim(settings, folder, run_id, takes_weights=takes_weights))
    record = read_record(stores[0])
    reader = reader_of(stores, identity)
    if reader.initialised and not (takes_weights and (record is None or record.id != run_id)):
        first = Counts() if record is None else record.first
        check_steps(settings, int(reader.step) - first.step)


def check_memory(settings: Settings, vocabulary: int | None, folder: RunFolder) -> None:
    """Check that the server's memory budget is enough for the model of a run, as far as that is known without torch.

    The blocks are those of the store, if there is one, or those of the GPT. Of another model a part of its parameters
    is counted, if its configuration tells them: the check then passes budgets that are too small, which the server
    refuses, but never refuses one that is enough.

    Args:
        settings: the run's settings.
        vocabulary: number of tokens in the data's vocabulary; None: not known yet, and the GPT is not checked.
        folder: the run's folder.

    Raises:
        MemoryBudgetError: the budget is too small; the message says the least one.
    """
    run, path = settings.run, settings.model.path
    identity = read_identity(folder.stores(settings)[0])
    if identity is not None:
        _check_least(settings, least_memory(identity.manifest, run.workers))
    elif path is not None:
        if (shape := least_shape(config_file(Path(path)))) is not None:
            _check_least(settings, _least_of(shape, settings), " and some more")
    elif vocabulary is not None:
        manifest = gpt_manifest(
            settings.model,
            vocabulary,
            dtype=run.dtype,
            block_dtypes=run.block_dtypes,
            optimizer=settings.optimizer.name,
        )
        _check_least(settings, least_memory(manifest, run.workers))


def check_machines(settings: Settings) -> None:
    """Check that other machines have workers to run, and that worker 0 is here where it reads a model's weights.

    Raises:
        ConfigError: they have not, or it is not; or the address to listen at is none.
    """
    run, path = settings.run, settings.model.path
    if run.listen:
        parse_host_port(run.listen)
    if run.listen and (run.workers_here is None or run.workers_here >= run.workers):
        found = "none" if run.workers_here is None else str(run.workers_here)
        raise ConfigError(
            f"run.workers_here: expected 0 to {run.workers - 1} with run.listen and run.workers = {run.workers}, found "
            f"{found}; say with --workers-here how many workers this machine runs, or leave --listen out"
        )
    if not settings.ranks_here and path is not None and has_weights(Path(path)):
        raise ConfigError(
            f"run.workers_here: expected at least 1, because worker 0 reads the weights in {path}, found 0; raise "
            "--workers-here, or import the weights into the store before (luwu import)"
        )


def check_steps(settings: Settings, made: int) -> None:
    """Raise ConfigError if a run has made more steps than its settings ask for."""
    if made > settings.run.steps:
        raise ConfigError(
            f"run.steps: expected at least {made}, the steps that this run has made, found {settings.run.steps}; raise "
            "--steps to train on, or go back to a snapshot (luwu snapshot list, luwu snapshot restore)"
        )


def _check_least(settings: Settings, needed: int, more: str = "") -> None:
    run = settings.run
    if run.memory < needed:
        least = -(-needed // 2**20)
        raise MemoryBudgetError(
            f"run.memory: expected at least {least}MiB{more} for this model with {counted(run.workers, 'worker')}, "
            f"found {format_size(run.memory)}; raise --memory, or take a smaller model"
        )


def _least_of(shape: ModelShape, settings: Settings) -> int:
    """Return bytes below the smallest budget for a model that has all parameters of a shape, and more."""
    if shape.layers == 1:  # it is no block, and its parts may be
        return 0
    run = settings.run
    size = min(map(element_bytes, (run.dtype, *run.block_dtypes.values())))
    layers = [size * shape.layer_size] * shape.layers
    tables = [size * shape.vocabulary * shape.hidden] * (1 if shape.tied else 2)
    # Each table is a block or lies in the root, by rules that are not repeated here: all do what takes least.
    return min(
        least_without_states(sum(tables), layers, run.workers), least_without_states(0, tables + layers, run.workers)
    )


def _check_shape(settings: Settings, stores: list[Path], identity: StoreIdentity) -> None:
    require_stripes(stores, identity.stripes)
    for name, found, wanted in (
        ("optimizer.name", settings.optimizer.name, identity.manifest.optimizer),
        ("run.dtype", settings.run.dtype, identity.manifest.dtype),
    ):
        if found != wanted:
            raise ManifestMismatchError(
                f"{name}: the store at {stores[0]} was made for {wanted}, found {found}; use what it was made for, or "
                "another folder (nothing was changed)"
            )
