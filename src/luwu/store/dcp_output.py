"""A store as a checkpoint of torch.distributed.checkpoint, optimizer states included, streamed.

The format is that of torch's ``FileSystemWriter``: files of tensors, each as ``torch.save`` writes it, and a pickled
``.metadata`` that says which piece of which tensor lies where. The names are those of ``{"model":
get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}``, so that ``dcp.load`` fills an FSDP2
model and its optimizer on any number of ranks. Tensors are cut into pieces; nobody has to hold one whole.
"""

from __future__ import annotations

import io
import itertools
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo  # every .metadata is made of it
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from luwu.core.errors import ConfigError
from luwu.core.room import NO_WAIT, Room
from luwu.optim.kinds import torch_optimizers
from luwu.store.model_files import kept_buffers
from luwu.store.origin import require_model_files
from luwu.store.outputs import Output, OutputFolder
from luwu.store.safetensors_file import SafetensorsFile
from luwu.store.values import ParameterPlace, Progress, StoredValues, moment_names, no_progress

METADATA_NAME = ".metadata"
PIECE_ELEMENTS = 1 << 20
FILE_BYTES = 2**30
"""Bytes after which another file is begun: the most that a killed export does again."""

VERSION = "1.0.0"
"""Version of the format, as torch 2.13 writes it."""

_ITEM_BYTES = 2048
"""Most bytes that torch.save adds to a piece."""


Entry = tuple[str, list[int] | None, list[int] | None, str, int, int]
"""A piece in a file: name, corner, extent (None for what is no tensor), dtype, first byte, bytes."""


@dataclass(frozen=True)
class Piece:
    """A rectangle of a tensor whose elements follow each other: its corner, and its extent in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of its elements."""
        return math.prod(self.sizes)


@dataclass(frozen=True)
class DcpReport:
    """Result of an export; ``kept`` of the ``files`` were there already."""

    step: int
    parameters: int
    nbytes: int
    files: int
    kept: int


def export_dcp(
    folders: list[Path],
    target: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    model_key: str = "model",
    optimizer_key: str = "optim",
    progress: Progress = no_progress,
    room: Room = NO_WAIT,
) -> DcpReport:
    """Write the committed step of a store at rest for ``dcp.load``: float32 values and the optimizer's states.

    Args:
        folders: the store's folders, which are not changed.
        target: a folder that is new, empty, or has part of the same export, which is then finished.
        settings: hyper-parameters of the optimizer, which a store does not have, such as ``lr``, ``betas``, ``eps`` and
            ``weight_decay``. Those left out are the defaults of torch's class.
        model_key, optimizer_key: keys of the two state dicts.
        progress: called with bytes written, and bytes in all.
        room: the wait for a disk that fills up meanwhile.

    Raises:
        ConfigError: the target holds something else, the optimizer has no such setting, or torch has no such optimizer.
        StoreLockedError: a server has the store open. StoreCorruptError: a checksum is wrong.
        StoreSpaceError, StorePermissionError, StoreError: the target cannot be written to.
    """
    with StoredValues(folders) as values:
        export = _Export(values, settings or {}, model_key, optimizer_key)
        files = export.plan()
        origin = {
            "store": values.identity.uuid,
            "step": values.step,
            "format": "torch.distributed.checkpoint",
            "keys": [model_key, optimizer_key],
            "settings": dict(export.settings),
        }
        output = OutputFolder(target, origin, room)
        names = [f"__0_{number}.distcp" for number in range(len(files))]
        missing = {name: file for name, file in zip(names, files, strict=True) if not output.finished(name)}
        output.require_room(sum(map(export.file_bytes, missing.values())))
        total = sum(export.nbytes(place) for file in files for place in file)
        done = total - sum(export.nbytes(place) for file in missing.values() for place in file)
        progress(done, total)
        for name, file in missing.items():
            with output.write(name) as opened:
                entries: list[Entry] = []
                for place in file:
                    entries += export.write(place, opened)
                    done += export.nbytes(place)
                    progress(done, total)
                if name == names[0]:
                    entries += export.write_small(folders[0], opened)
                opened.notes = entries
        with output.write(METADATA_NAME) as metadata_file:
            metadata_file.write(pickle.dumps(export.metadata({name: output.notes(name) for name in names})))
        output.say_others()
        return DcpReport(values.step, export.parameters, total, len(files), len(files) - len(missing))


def cut(shape: Sequence[int], at_most: int) -> Iterator[Piece]:
    """Cut a tensor into rectangles of at most ``at_most`` consecutive elements, in their order."""
    if math.prod(shape) == 0 or not shape:
        yield Piece((0,) * len(shape), tuple(shape))
        return
    depth = next(d for d in range(len(shape)) if math.prod(shape[d + 1 :]) <= at_most)
    inner = tuple(shape[depth + 1 :])
    rows = max(1, at_most // max(1, math.prod(inner)))
    for outer in itertools.product(*(range(size) for size in shape[:depth])):
        for first in range(0, shape[depth], rows):
            count = min(rows, shape[depth] - first)
            yield Piece((*outer, first, *(0 for _ in inner)), (*(1 for _ in outer), count, *inner))


def _save(value: Any, file: Output) -> tuple[int, int]:
    """Write a file that torch.load reads; return its first byte and its bytes."""
    first, buffer = file.written_bytes, io.BytesIO()
    torch.save(value, buffer)
    return first, file.write(buffer.getbuffer())


class _Export:
    """The tensors of a checkpoint, and their part of its metadata."""

    def __init__(self, values: StoredValues, settings: Mapping[str, Any], model_key: str, optimizer_key: str) -> None:
        self._values = values
        self._model_key = model_key
        self._optimizer_key = optimizer_key
        self._states = moment_names(values.manifest)
        self.settings = _all_settings(values.manifest.optimizer, settings)
        self._places = list(values.places())
        self.parameters = sum(place.parameter.numel for place in self._places)

    def plan(self) -> list[list[ParameterPlace]]:
        """Divide the parameters into files."""
        files: list[list[ParameterPlace]] = [[]]
        for place in self._places:
            if files[-1] and self.file_bytes([*files[-1], place]) > FILE_BYTES:
                files.append([])
            files[-1].append(place)
        return files

    def nbytes(self, place: ParameterPlace) -> int:
        """Return the bytes of a parameter with its states, as float32."""
        return 4 * (1 + len(self._states)) * place.parameter.numel

    def file_bytes(self, file: list[ParameterPlace]) -> int:
        """Return the bytes of a file, or a little more."""
        pieces = sum(2 + place.parameter.numel // PIECE_ELEMENTS for place in file)
        return sum(map(self.nbytes, file)) + _ITEM_BYTES * (2 + len(self._states)) * pieces

    def write(self, place: ParameterPlace, file: Output) -> list[Entry]:
        """Write a parameter and its states, piece by piece."""
        entries: list[Entry] = []
        state_key = f"{self._optimizer_key}.state.{place.parameter.name}"
        names = [f"{self._model_key}.{place.parameter.name}"]
        names += [f"{state_key}.{name}" for name in self._states] if self._trained(place) else []
        first = 0
        for piece in cut(place.parameter.shape, PIECE_ELEMENTS):
            found = self._values.read(place, first, piece.numel, states=True)
            for name, plane in zip(names, (found.exact(), *found.moments), strict=True):
                tensor = plane.clone().view(piece.sizes)  # its own storage: torch.save writes a storage whole
                entries.append((name, list(piece.offsets), list(piece.sizes), "float32", *_save(tensor, file)))
            first += piece.numel
        if self._trained(place):
            count = torch.tensor(float(self._values.counts[place.block]))
            entries.append((f"{state_key}.step", [], [], "float32", *_save(count, file)))
        return entries

    def write_small(self, store: Path, file: Output) -> list[Entry]:
        """Write buffers, and the optimizer's settings."""
        require_model_files(store)
        with kept_buffers(store) as buffers:
            entries = [] if buffers is None else self._write_buffers(buffers, file)
        for name, value in self._settings_by_key().items():
            entries.append((name, None, None, "", *_save(value, file)))
        return entries

    def _write_buffers(self, buffers: SafetensorsFile, file: Output) -> list[Entry]:
        entries: list[Entry] = []
        for name, place in buffers.tensors.items():
            tensor = buffers.read(name, 0, place.numel).view(place.shape)
            dtype = str(place.dtype).removeprefix("torch.")
            corner = [0] * len(place.shape)
            entries.append((f"{self._model_key}.{name}", corner, list(place.shape), dtype, *_save(tensor, file)))
        return entries

    def metadata(self, files: Mapping[str, Sequence[Entry]]) -> Metadata:
        """Return the contents of ``.metadata``, made from the contents of each file."""
        kinds: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        storage: dict[MetadataIndex, _StorageInfo] = {}
        aliases = {f"{self._model_key}.{place.parameter.name}": place.parameter.aliases for place in self._places}
        for file, entries in files.items():
            for first_name, offsets, sizes, dtype, first, nbytes in entries:
                others = (f"{self._model_key}.{alias}" for alias in aliases.get(first_name, ()))
                for name in (first_name, *others):  # tied names share bytes
                    corner = None if offsets is None else torch.Size(offsets)
                    storage[MetadataIndex(name, corner)] = _StorageInfo(file, first, nbytes)
                    if corner is None or sizes is None:
                        kinds[name] = BytesStorageMetadata()
                    else:
                        _add_chunk(kinds, name, ChunkStorageMetadata(corner, torch.Size(sizes)), dtype)
        paths = {name: self._path(name) for name in kinds}
        return Metadata(kinds, planner_data=paths, storage_data=storage, storage_meta=StorageMeta(), version=VERSION)

    def _trained(self, place: ParameterPlace) -> bool:
        return self._values.manifest.blocks[place.block].trainable

    def _settings_by_key(self) -> dict[str, Any]:
        """Return the settings in torch's two forms: one group of all parameters, and each parameter by itself."""
        names = [place.parameter.name for place in self._places if self._trained(place)]
        groups = f"{self._optimizer_key}.param_groups"
        whole = {f"{groups}.0.{name}": value for name, value in {**self.settings, "params": names}.items()}
        each = {f"{groups}.{name}.{key}": value for name in names for key, value in self.settings.items()}
        return {**whole, **each}

    def _path(self, name: str) -> tuple[str | int, ...]:
        """Return the path of a value in the nested state dict."""
        groups = f"{self._optimizer_key}.param_groups.0."
        states = f"{self._optimizer_key}.state."
        if name.startswith(groups):
            return (self._optimizer_key, "param_groups", 0, name.removeprefix(groups))
        if name.startswith(states):
            return (self._optimizer_key, "state", *name.removeprefix(states).rsplit(".", 1))
        key = self._model_key if name.startswith(f"{self._model_key}.") else self._optimizer_key
        return (key, name.removeprefix(f"{key}."))


def _all_settings(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting of the optimizer as torch has it, with the given ones in place."""
    known_to_torch = torch_optimizers()
    optimizer = known_to_torch.get(kind)
    if optimizer is None:
        raise ConfigError(
            f"optimizer {kind}: expected one whose states torch has with their step ({', '.join(known_to_torch)}) "
            "for torch.distributed.checkpoint; export safetensors"
        )
    blank = torch.nn.Parameter(torch.zeros(1))
    known: dict[str, Any] = optimizer([blank]).state_dict()["param_groups"][0]  # type: ignore[call-arg]
    known.pop("params")
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigError(f"{unknown[0]}: {optimizer.__name__} has no such setting; it has {', '.join(known)}")
    return {**known, **given}


def _add_chunk(
    kinds: dict[str, TensorStorageMetadata | BytesStorageMetadata], name: str, chunk: ChunkStorageMetadata, dtype: str
) -> None:
    """Note a piece of a tensor. The tensor is as large as its pieces reach."""
    known = kinds.setdefault(
        name, TensorStorageMetadata(TensorProperties(dtype=getattr(torch, dtype)), chunk.sizes, [])
    )
    assert isinstance(known, TensorStorageMetadata)
    known.chunks.append(chunk)
    ends = (corner + extent for corner, extent in zip(chunk.offsets, chunk.sizes, strict=True))
    known.size = torch.Size(max(size, end) for size, end in zip(known.size, ends, strict=True))
