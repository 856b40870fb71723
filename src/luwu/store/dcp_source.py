"""A torch.distributed.checkpoint as a source of a store's first values, with optimizer states where it has them."""

from __future__ import annotations

import copy
import math
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from luwu.core.errors import CheckpointError, ConfigError
from luwu.core.manifest import BlockManifest, Manifest, ParameterManifest
from luwu.optim.kinds import torch_optimizers
from luwu.store.checkpoint import listed
from luwu.store.dcp_output import METADATA_NAME
from luwu.store.dcp_tensor import SavedPiece
from luwu.store.sources import described_files, match_parameters
from luwu.store.values import moment_names

MOST_OPEN = 8
"""Number of tensors whose place in the files is remembered: a parameter and its states are read side by side."""


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """The metadata of a tensor. torch's own objects take kilobytes for each: many for a deep model."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[tuple[tuple[int, ...], tuple[int, ...], str, int, int], ...]  # corner, sizes, file, offset, length
    why_unreadable: str = ""


class DcpReader:
    """The tensors of a checkpoint under one prefix, read in parts.

    torch keeps the description in a pickle: read only checkpoints that you trust, as with ``dcp.load``.

    Args:
        path: the checkpoint's folder.

    Raises:
        CheckpointError: it is no such folder, or its metadata cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tensors = _described(path)
        self._pieces: OrderedDict[str, list[SavedPiece]] = OrderedDict()
        self.prefix = ""

    def under(self, prefix: str) -> DcpReader:
        """Return the same checkpoint under another prefix."""
        other = copy.copy(self)
        other._pieces = OrderedDict()
        other.prefix = prefix
        return other

    @property
    def path(self) -> Path:
        """The checkpoint's folder."""
        return self._path

    @property
    def files(self) -> tuple[Path, ...]:
        """Its files."""
        return tuple(sorted({self._path / piece[2] for each in self._tensors.values() for piece in each.pieces}))

    def all_names(self) -> tuple[str, ...]:
        """Every tensor, whatever its prefix."""
        return tuple(self._tensors)

    def names(self) -> tuple[str, ...]:
        """Every tensor under the prefix, without it."""
        return tuple(name.removeprefix(self.prefix) for name in self._tensors if name.startswith(self.prefix))

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return self._tensors[self.prefix + name].shape

    def dtype(self, name: str) -> torch.dtype:
        """A tensor's dtype."""
        return self._tensors[self.prefix + name].dtype

    def read_range(self, name: str, first: int, count: int) -> Tensor:
        """Elements of a tensor seen as flat.

        Raises:
            CheckpointError: a file is missing or damaged, or the pieces do not make up the tensor.
        """
        full = self.prefix + name
        values = torch.empty(count, dtype=self.dtype(name))
        filled = sum(piece.fill(values, first, self.shape(name)) for piece in self._pieces_of(full))
        if filled != count:
            raise CheckpointError(
                f"{self._path}: tensor {full}: expected its pieces to cover elements {first} to {first + count} once, "
                f"found {filled} elements; save the checkpoint again"
            )
        return values

    def _pieces_of(self, full: str) -> list[SavedPiece]:
        if full not in self._pieces:
            known = self._tensors[full]
            if known.why_unreadable:
                raise CheckpointError(f"{self._path}: tensor {full}: {known.why_unreadable}")
            if _overlap(known):
                raise CheckpointError(
                    f"{self._path}: tensor {full}: expected pieces that share no element, found some that do; save the "
                    "checkpoint again"
                )
            self._pieces[full] = [
                SavedPiece(full, self._path / file, offset, length, corner, sizes, known.dtype)
                for corner, sizes, file, offset, length in known.pieces
            ]
            while len(self._pieces) > MOST_OPEN:
                self._pieces.popitem(last=False)
        return self._pieces[full]


def _described(path: Path) -> dict[str, SavedTensor]:
    """Every tensor of a checkpoint by its name."""
    try:
        metadata = FileSystemReader(path).read_metadata()
        storage = {(index.fqn, tuple(index.offset or ())): info for index, info in metadata.storage_data.items()}
        lengths: dict[str, int] = {}
        return {
            name: _saved_tensor(path, name, each, storage, lengths)
            for name, each in metadata.state_dict_metadata.items()
            if isinstance(each, TensorStorageMetadata)
        }
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: expected a torch.distributed.checkpoint with {METADATA_NAME}, found none; check the path"
        ) from error
    except Exception as error:  # a pickle may raise anything, and make anything
        raise CheckpointError(f"{path / METADATA_NAME}: cannot be read: {error!r}; save it again") from error


def _saved_tensor(
    path: Path,
    name: str,
    known: TensorStorageMetadata,
    storage: Mapping[tuple[str, tuple[int, ...]], Any],
    lengths: dict[str, int],
) -> SavedTensor:
    """Return a tensor and its pieces, or the reason why it cannot be read; the checkpoint's others can be."""
    shape, dtype = tuple(known.size), known.properties.dtype
    if not isinstance(name, str) or not isinstance(dtype, torch.dtype) or min(shape, default=0) < 0:
        raise ValueError(f"tensor {name!r} of shape {list(shape)} and {dtype}")
    pieces = []
    for chunk in known.chunks:
        corner, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
        info = storage.get((name, corner))
        if info is None or info.transform_descriptors:
            why = f"expected its piece at {list(corner)} in a file as torch.save writes it, found {info}"
            return SavedTensor(shape, dtype, (), f"{why}; save the checkpoint again, without extensions")
        inside = len(corner) == len(sizes) == len(shape) and all(
            min(first, size) >= 0 and first + size <= whole
            for first, size, whole in zip(corner, sizes, shape, strict=True)
        )
        if not inside or not _has_room(path, info, math.prod(sizes) * dtype.itemsize, lengths):
            why = (
                f"{info.relative_path} at offset {info.offset}: expected {list(sizes)} at {list(corner)} of "
                f"{list(shape)} in {info.length} bytes, found a file that is missing, too short or elsewhere"
            )
            return SavedTensor(shape, dtype, (), f"{why}; copy or save the checkpoint again")
        pieces.append((corner, sizes, info.relative_path, info.offset, info.length))
    return SavedTensor(shape, dtype, tuple(pieces))


def _has_room(path: Path, info: Any, needed_bytes: int, lengths: dict[str, int]) -> bool:
    """Return True if a piece lies in one of the checkpoint's files; `lengths` has the lengths of files already seen."""
    file = Path(info.relative_path)
    if file.is_absolute() or ".." in file.parts or min(info.offset, info.length - needed_bytes) < 0:
        return False
    if info.relative_path not in lengths:
        try:
            lengths[info.relative_path] = (path / file).stat().st_size
        except (OSError, ValueError):
            lengths[info.relative_path] = 0
    return int(info.offset + info.length) <= lengths[info.relative_path]


def _overlap(known: SavedTensor) -> bool:
    """Return true when two of a tensor's pieces have an element in common: another element may then be in none."""
    pieces = [(corner, sizes) for corner, sizes, *_ in known.pieces if 0 not in sizes]
    if not known.shape:
        return len(pieces) > 1
    dimensions = range(len(known.shape))
    along = max(dimensions, key=lambda dimension: len({corner[dimension] for corner, _ in pieces}))
    open_pieces: list[tuple[tuple[int, ...], tuple[int, ...]]] = []  # pieces that reach into the next one
    for corner, sizes in sorted(pieces, key=lambda piece: piece[0][along]):
        open_pieces = [piece for piece in open_pieces if piece[0][along] + piece[1][along] > corner[along]]
        for other, extent in open_pieces:
            if all(other[d] < corner[d] + sizes[d] and corner[d] < other[d] + extent[d] for d in dimensions):
                return True
        open_pieces.append((corner, sizes))
    return False


class DcpSource:
    """Parameters and, where the checkpoint has them, the optimizer's states and their count of steps.

    The prefixes under which model and optimizer stand are found by the names of the model's parameters.

    Args:
        path: the checkpoint's folder.
        manifest: of the model.
        ignore: regular expressions: tensors that may be there without being a parameter, such as buffers.

    Raises:
        CheckpointError: tensors are missing, or there are others, or a shape or dtype is another; files are damaged.
        ConfigError: it has states that a store for this optimizer does not take from torch.
    """

    def __init__(self, path: Path, manifest: Manifest, ignore: Iterable[str] = ()) -> None:
        known_to_torch = torch_optimizers()
        self.reader = DcpReader(path)
        self._moments = moment_names(manifest)
        parameters = [each for block in manifest.blocks for each in block.parameters]
        trained = [each for block in manifest.blocks if block.trainable for each in block.parameters]
        self._state_prefix = self._find_states(trained)
        if self._state_prefix is not None and manifest.optimizer not in known_to_torch:
            raise ConfigError(
                f"{path}: has optimizer states, which a store for {manifest.optimizer} does not take from torch; "
                f"import for one of {', '.join(known_to_torch)}, or save the checkpoint without them"
            )
        self.reader.prefix = self._find_model(parameters)
        state_names = [] if self._state_prefix is None else [f"^{re.escape(self._state_prefix)}state\\."]
        self._names = match_parameters(self.reader, manifest, [*ignore, *state_names])
        self._states = self.reader.under("")
        self._updates = {block.name: self._read_updates(block) for block in manifest.blocks}

    @property
    def origin(self) -> Mapping[str, Any]:
        """The files, with their sizes and times of change."""
        return {"kind": "torch.distributed.checkpoint", "files": described_files(self.reader.files)}

    @property
    def step(self) -> int:
        """Steps that the optimizer had made."""
        return max(self._updates.values(), default=0)

    def updates(self, block: BlockManifest) -> int:
        """Steps in which it updated this block."""
        return self._updates[block.name]

    def read(self, parameter: ParameterManifest, first: int, count: int) -> Tensor:
        """Elements of a parameter, flat."""
        return self.reader.read_range(self._names[parameter.name], first, count)

    def read_moments(self, parameter: ParameterManifest, first: int, count: int) -> list[Tensor]:
        """The optimizer's states of the same elements; none where the checkpoint has none."""
        if self._state_prefix is None:
            return []
        return [self._states.read_range(self._state(parameter, moment), first, count) for moment in self._moments]

    def _find_model(self, parameters: list[ParameterManifest]) -> str:
        """Return the prefix of the parameters' names: of the prefixes that the first has, the one that most have."""
        names, every = [each.name for each in parameters], set(self.reader.all_names())
        first = (parameters[0].name, *parameters[0].aliases)
        prefixes = {
            name.removesuffix(own) for name in every for own in first if name == own or name.endswith(f".{own}")
        }
        if not prefixes:
            raise CheckpointError(
                f"{self.reader.path}: expected the model's parameters such as {names[0]} under a prefix, found "
                f"{listed(sorted(every))}; name a checkpoint of this model"
            )
        return max(sorted(prefixes), key=lambda prefix: sum(prefix + name in every for name in names))

    def _find_states(self, trained: list[ParameterManifest]) -> str | None:
        for parameter in trained:
            ending = f"state.{parameter.name}.{self._moments[0]}"
            for name in self.reader.all_names():
                if name == ending or name.endswith(f".{ending}"):
                    return name.removesuffix(ending)
        return None

    def _state(self, parameter: ParameterManifest, kind: str) -> str:
        return f"{self._state_prefix}state.{parameter.name}.{kind}"

    def _read_updates(self, block: BlockManifest) -> int:
        if self._state_prefix is None or not block.trainable:
            return 0
        there = set(self._states.all_names())
        counts: dict[str, float] = {}
        for parameter in block.parameters:
            for kind in (*self._moments, "step"):
                name = self._state(parameter, kind)
                shape = () if kind == "step" else parameter.shape
                found = self._states.shape(name) if name in there else None
                if found != shape:
                    raise CheckpointError(
                        f"{self._states.path}: tensor {name}: expected shape {list(shape)}, found "
                        f"{'none' if found is None else list(found)}; save the optimizer's state with every parameter"
                    )
            counts[parameter.name] = self._states.read_range(self._state(parameter, "step"), 0, 1).item()
        if len(set(counts.values())) > 1:
            least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
            raise CheckpointError(
                f"{self._states.path}: block {block.name}: expected one step count for its parameters, found "
                f"{counts[least]:.0f} for {least} and {counts[most]:.0f} for {most}; choose blocks that were updated "
                "together"
            )
        return int(next(iter(counts.values())))
