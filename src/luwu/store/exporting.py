"""A store's parameters as a folder that transformers loads, streamed: never more than a chunk is in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from luwu.core.errors import ConfigError
from luwu.core.manifest import DTYPES
from luwu.core.room import NO_WAIT, Room
from luwu.store.checkpoint import INDEX_NAME
from luwu.store.model_files import (
    CONFIG_NAME,
    copy_files,
    find_model_files,
    kept_buffers,
    kept_model_folder,
    write_config,
)
from luwu.store.origin import require_model_files
from luwu.store.outputs import Output, OutputFolder
from luwu.store.parts import is_file
from luwu.store.safetensors_file import SafetensorsFile
from luwu.store.safetensors_output import Shard, as_bytes, header_of, plan_shards
from luwu.store.values import ParameterPlace, Progress, StoredValues, no_progress

SHARD_BYTES = 5 * 10**9
"""Most bytes of a file: the default of transformers."""

PIECE_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class ExportReport:
    """Result of an export; ``kept`` of the ``shards`` were there already."""

    step: int
    parameters: int
    nbytes: int
    shards: int
    kept: int


def export_safetensors(
    folders: list[Path],
    target: Path,
    *,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    model_folder: Path | None = None,
    progress: Progress = no_progress,
    room: Room = NO_WAIT,
) -> ExportReport:
    """Write the committed step of a store at rest as safetensors, with the model's configuration and tokenizer.

    Every checksum of the data that is read is compared. A tensor with several names is written under its first name;
    transformers ties the other names again.

    Args:
        folders: the store's folders, which are not changed.
        target: a folder that is new, empty, or has part of the same export, which is then finished.
        dtype: the tensors' dtype; None: as workers pull them. ``float32`` takes the masters where they exist.
        shard_bytes: the largest size of a file, except for a single tensor that is larger.
        model_folder: folder with config.json and the tokenizer; None: the files that an import kept, if any.
        progress: called with bytes written, and bytes in all.
        room: the wait for a disk that fills up meanwhile.

    Raises:
        ConfigError: an argument cannot work, or the target holds something else.
        StoreLockedError: a server has the store open. StoreCorruptError: a checksum is wrong.
        StoreSpaceError, StorePermissionError, StoreError: the target cannot be written to.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"dtype: expected one of {', '.join(DTYPES)}, found {dtype!r}")
    if shard_bytes < 1:
        raise ConfigError(f"shard size: expected at least one byte, found {shard_bytes}")
    require_model_files(folders[0])
    with StoredValues(folders) as values, kept_buffers(folders[0]) as buffers:
        export = _Export(values, getattr(torch, dtype) if dtype else None, buffers)
        shards = plan_shards(export.tensors, shard_bytes)
        origin: dict[str, Any] = {
            "store": values.identity.uuid,
            "step": values.step,
            "dtype": dtype or values.manifest.dtype,
            "shard_bytes": shard_bytes,
        }
        output = OutputFolder(target, origin, room)
        kept = [shard for shard in shards if output.finished(shard.name)]
        missing = [shard for shard in shards if shard not in kept]
        output.require_room(sum(shard.nbytes for shard in missing))
        done, total = sum(shard.nbytes for shard in kept), sum(shard.nbytes for shard in shards)
        progress(done, total)
        for shard in missing:
            with output.write(shard.name) as file:
                export.write(shard, file, partial(_add_up, progress, done, total))
            done += shard.nbytes
        _write_index(output, shards, export)
        source = model_folder or kept_model_folder(folders[0])
        files = [] if source is None else find_model_files(source)
        if files:
            copy_files(files, target, room)
            if is_file(target / CONFIG_NAME):
                write_config(target / CONFIG_NAME, origin["dtype"], room)
        output.say_others(file.name for file in files)
        return ExportReport(values.step, export.parameters, total, len(shards), len(kept))


class _Export:
    """The tensors of an export and where their values come from."""

    def __init__(self, values: StoredValues, dtype: torch.dtype | None, buffers: SafetensorsFile | None) -> None:
        self._values = values
        self._dtype = dtype  # None: as workers pull them
        self._buffers = buffers
        self._places = {place.parameter.name: place for place in values.places()}
        self.parameters = sum(place.parameter.numel for place in self._places.values())
        self.tensors = {
            name: (dtype or values.dtype(place), place.parameter.shape) for name, place in self._places.items()
        }
        if buffers is not None:
            self.tensors.update({name: (place.dtype, place.shape) for name, place in buffers.tensors.items()})

    def write(self, shard: Shard, file: Output, progress: Callable[[int], None]) -> None:
        """Write a file's header and tensors; progress is of its bytes."""
        file.write(header_of(shard.tensors))
        written = 0
        for name in shard.tensors:
            for piece in self._pieces(name):
                written += file.write(as_bytes(piece))
                progress(written)

    def _pieces(self, name: str) -> Iterator[Tensor]:
        place = self._places.get(name)
        if place is None:
            assert self._buffers is not None
            yield self._buffers.read(name, 0, self._buffers.tensors[name].numel)
            return
        exact = self._dtype is torch.float32 and self._values.dtype(place) is not torch.float32
        for _, values in self._values.pieces(place, PIECE_ELEMENTS, states=exact):
            yield self._converted(values.exact() if exact else values.parameters, place)

    def _converted(self, values: Tensor, place: ParameterPlace) -> Tensor:
        if self._dtype is None:
            return values
        converted = values.to(self._dtype)
        if self._dtype is torch.float16 and bool((converted.isinf() & ~values.isinf()).any()):
            raise ConfigError(
                f"dtype: float16 ends at 65504, found {values.abs().max().item():g} in parameter "
                f"{place.parameter.name}; export bfloat16 or float32"
            )
        return converted


def _add_up(progress: Progress, before: int, total: int, part: int) -> None:
    progress(before + part, total)


def _write_index(output: OutputFolder, shards: list[Shard], export: _Export) -> None:
    if len(shards) < 2:
        return
    index = {
        "metadata": {"total_parameters": export.parameters, "total_size": sum(shard.nbytes for shard in shards)},
        "weight_map": {name: shard.name for shard in shards for name in shard.tensors},
    }
    with output.write(INDEX_NAME) as file:
        file.write(json.dumps(index, indent=2, sort_keys=True).encode())
