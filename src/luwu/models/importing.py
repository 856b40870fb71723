"""A pretrained model's folder into a store that `luwu.parallelize` of the same model trains on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from luwu.models.pretrained import PretrainedReader, build_on_meta, ignored_names, saved_buffers
from luwu.store.checkpoint import CheckpointReader
from luwu.store.importing import ImportReport, import_values
from luwu.store.model_files import keep_model_files
from luwu.store.sources import CheckpointSource
from luwu.store.values import Progress, no_progress
from luwu.worker.describe import describe


def import_pretrained(
    folder: Path,
    stores: Sequence[Path],
    *,
    dtype: str = "float32",
    blocks: Sequence[str] | None = None,
    progress: Progress = no_progress,
) -> ImportReport:
    """Stream the safetensors of a folder of transformers into a store, with its configuration and tokenizer.

    Killed, it goes on where it was when it is called again; finished, it is not repeated.

    Args:
        folder: with config.json and safetensors.
        stores: folders that the store is striped over.
        dtype: ``float32`` or ``bfloat16``: what workers will pull; a float32 master is kept either way.
        blocks: patterns of module names as in `luwu.parallelize`; None: the repeated layer.
        progress: of bytes written.

    Raises:
        CheckpointError: the folder's tensors are damaged, or not the model's. ConfigError: its configuration cannot be
            used, or the store's folders hold another store. Others: see `luwu.store.importing.import_values`.
    """
    model = build_on_meta(folder)
    manifest = describe(model, blocks, getattr(torch, dtype))
    folders = list(stores)
    with CheckpointReader(folder) as checkpoint:
        reader = PretrainedReader(checkpoint, model)
        source = CheckpointSource(reader, manifest, ignored_names(model))
        report = import_values(source, manifest, folders, progress)
        buffers = {name: reader.read(name) for name in saved_buffers(model, reader)}
    keep_model_files(folder, folders[0], buffers)
    return report
