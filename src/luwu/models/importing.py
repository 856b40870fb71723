"""A model's checkpoint into a store that `luwu.parallelize` of the same model trains on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from luwu.core.errors import ConfigError
from luwu.core.manifest import DEFAULT_OPTIMIZER, DTYPES
from luwu.core.room import NO_WAIT, Room
from luwu.models.pretrained import build_on_meta, ignored_names, read_buffers
from luwu.optim.kinds import optimizer_of
from luwu.store.checkpoint import CheckpointReader
from luwu.store.dcp_output import METADATA_NAME
from luwu.store.dcp_source import DcpSource
from luwu.store.folders import has_store
from luwu.store.importing import ImportReport, import_values
from luwu.store.model_files import keep_model_files
from luwu.store.pretrained import PretrainedReader
from luwu.store.sources import CheckpointSource
from luwu.store.values import Progress, no_progress
from luwu.worker.layout import choose_layout


def import_pretrained(
    checkpoint: Path,
    stores: Sequence[Path],
    *,
    model_folder: Path | None = None,
    dtype: str = "float32",
    block_dtypes: Mapping[str, str] | None = None,
    blocks: Sequence[str] | None = None,
    optimizer: str = DEFAULT_OPTIMIZER,
    progress: Progress = no_progress,
    room: Room = NO_WAIT,
) -> ImportReport:
    """Stream a checkpoint of a model of transformers into a store, with the model's configuration and tokenizer.

    After a kill, the next call goes on from there; a finished import is not repeated.

    Args:
        checkpoint: a folder with safetensors, or of torch.distributed.checkpoint: then optimizer states and their step
            come along, and it must be one that you trust, because torch describes it in a pickle.
        stores: folders that the store is striped over.
        model_folder: with config.json; None: the checkpoint's.
        dtype: ``float32``, ``bfloat16`` or ``float16``: what workers will pull; a float32 master is kept either way.
        block_dtypes: other ones for some blocks, by pattern of module names as in `luwu.parallelize`.
        blocks: patterns of module names as in `luwu.parallelize`; None: the repeated layer.
        optimizer: kind of the one to train with, whose states the store makes room for, such as ``lion``.
        progress: called with bytes written, and bytes in all.
        room: the wait for a disk that fills up meanwhile.

    Raises:
        CheckpointError: the tensors are damaged, or not the model's. ConfigError: the configuration cannot be used, or
            the store's folders hold another store. Others: see `luwu.store.importing.import_values`.
    """
    optimizer_of(optimizer)
    for name in (dtype, *(block_dtypes or {}).values()):
        if name not in DTYPES:
            raise ConfigError(f"dtype: expected one of {', '.join(DTYPES)}, found {name!r}")
    others = {pattern: getattr(torch, name) for pattern, name in (block_dtypes or {}).items()}
    folder = model_folder or checkpoint
    model = build_on_meta(folder)
    folders = list(stores)
    _, manifest = choose_layout(model, blocks, getattr(torch, dtype), others, optimizer, partial(has_store, folders))
    if (checkpoint / METADATA_NAME).exists():
        distributed = DcpSource(checkpoint, manifest, ignored_names(model))
        keep = partial(keep_model_files, folder, folders[0], read_buffers(model, distributed.reader), room)
        return import_values(distributed, manifest, folders, progress, room, keep)
    with CheckpointReader(checkpoint) as opened:
        reader = PretrainedReader(opened, model)
        source = CheckpointSource(reader, manifest, ignored_names(model))
        keep = partial(keep_model_files, folder, folders[0], read_buffers(model, reader), room)
        return import_values(source, manifest, folders, progress, room, keep)
