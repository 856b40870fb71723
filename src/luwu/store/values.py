"""The committed values of a store at rest: parameters and optimizer states, read chunk by chunk, checksums compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from luwu.core.errors import ConfigError
from luwu.core.manifest import BlockManifest, Manifest, ParameterManifest
from luwu.optim.kinds import optimizer_of
from luwu.store.findings import say_findings
from luwu.store.folders import StoreIdentity, no_store, no_values, read_identity, require_stripes
from luwu.store.opening import held_at_rest, reader_of

Progress = Callable[[int, int], None]
"""Function that is called now and then with the bytes done and the bytes in all."""


def no_progress(done: int, total: int) -> None:
    """Ignore progress: for callers that do not show it."""


def moment_names(manifest: Manifest) -> tuple[str, ...]:
    """Return torch.optim's names of a trainable parameter's optimizer states, in the order of their planes.

    Raises:
        ConfigError: there is no optimizer of the manifest's kind.
    """
    return optimizer_of(manifest.optimizer).states


def has_master(manifest: Manifest, block: BlockManifest) -> bool:
    """Return True if the first state plane is a float32 master of the parameters."""
    return block.trainable and manifest.dtype_of(block) != "float32"


@dataclass(frozen=True)
class ParameterPlace:
    """A parameter and the number of the block that it lies in."""

    block: int
    parameter: ParameterManifest


@dataclass(frozen=True)
class Values:
    """Consecutive elements, flat: ``parameters`` in their block's dtype, ``master`` and ``moments`` float32 if wanted.

    ``master`` is None where the parameters themselves are the master, or the block is frozen.
    """

    parameters: Tensor
    master: Tensor | None
    moments: tuple[Tensor, ...]

    def exact(self) -> Tensor:
        """Parameters in float32, as exact as the store knows them."""
        return self.parameters.to(torch.float32) if self.master is None else self.master


class StoredValues:
    """Reads a store that nobody writes to; use it as a context manager. Takes the memory of one chunk.

    Attributes:
        folders, identity: of the store.
        step: committed steps.
        counts: updates that each block has seen, which bias correction counts by.

    Raises:
        StoreFormatError: there is no store. StoreEmptyError: it has no values yet. StoreLockedError: a server has it
            open.
        ConfigError: it is one of several servers', and does not hold whole parameters.
        StoreCorruptError: its files are damaged.
    """

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self.identity = require_identity(folders)
        self._held = ExitStack()
        self._held.enter_context(held_at_rest(folders))
        try:
            self._reader = reader_of(folders, self.identity)
            if not self._reader.initialised:
                raise no_values(folders[0])
            require_whole(
                folders[0], self.manifest, "train on one server, or save luwu.full_state_dict(model) in a worker"
            )
        except BaseException:
            self._held.close()
            raise
        say_findings(self._reader, mended=False)
        self.step = int(self._reader.step)
        self.counts: list[int] = list(self._reader.counts)
        self._chunks = [list(self._reader.chunks(block)) for block in range(len(self.manifest.blocks))]
        self._kept: tuple[int, int, bool, Values] | None = None

    def __enter__(self) -> StoredValues:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the store, and let servers open it again."""
        self._held.close()

    @property
    def manifest(self) -> Manifest:
        """Manifest of the store."""
        return self.identity.manifest

    def dtype(self, place: ParameterPlace) -> torch.dtype:
        """Return the dtype of a parameter as workers pull it."""
        return torch_dtype(self.manifest, place.block)

    def places(self) -> Iterator[ParameterPlace]:
        """Every parameter, in the order in which the store has them: reading in it reads each chunk once."""
        for number, block in enumerate(self.manifest.blocks):
            for parameter in sorted(block.parameters, key=lambda each: each.offset):
                yield ParameterPlace(number, parameter)

    def pieces(self, place: ParameterPlace, at_most: int, *, states: bool) -> Iterator[tuple[int, Values]]:
        """Yield a parameter's elements in pieces of at most this number: (first element in the parameter, values).

        Raises:
            StoreCorruptError: a checksum is wrong; names file, offset and block. StoreError: the disk fails.
        """
        first = 0
        while first < place.parameter.numel:
            start = place.parameter.offset + first
            values = self._read(place.block, start, min(at_most, place.parameter.numel - first), states)
            yield first, values
            first += values.parameters.numel()

    def read(self, place: ParameterPlace, first: int, count: int, *, states: bool) -> Values:
        """Return ``count`` elements of a parameter from ``first`` on; errors as `pieces`."""
        found: list[Values] = []
        while count > 0:
            found.append(self._read(place.block, place.parameter.offset + first, count, states))
            first, count = first + found[-1].parameters.numel(), count - found[-1].parameters.numel()
        if len(found) == 1:
            return found[0]
        masters = [each.master for each in found if each.master is not None]
        return Values(
            torch.cat([each.parameters for each in found]) if found else torch.empty(0, dtype=self.dtype(place)),
            torch.cat(masters) if masters else None,
            tuple(map(torch.cat, zip(*(each.moments for each in found), strict=True))),
        )

    def _read(self, block: int, start: int, at_most: int, states: bool) -> Values:
        """Elements of a block from ``start`` on, to the end of their chunk at most."""
        chunk, (first, elements) = next(
            (number, extent) for number, extent in enumerate(self._chunks[block]) if start < sum(extent)
        )
        if self._kept is None or self._kept[:3] != (block, chunk, states):
            self._kept = None  # its memory first
            self._kept = (block, chunk, states, self._read_chunk(block, chunk, states))
        whole = self._kept[3]
        part = slice(start - first, min(start - first + at_most, elements))
        return Values(
            whole.parameters[part],
            None if whole.master is None else whole.master[part],
            tuple(moment[part] for moment in whole.moments),
        )

    def _read_chunk(self, block: int, chunk: int, states: bool) -> Values:
        raw, planes = self._reader.read_chunk(block, chunk, states)
        moments = [torch.from_numpy(plane) for plane in planes]
        master = moments.pop(0) if moments and has_master(self.manifest, self.manifest.blocks[block]) else None
        return Values(torch.from_numpy(raw).view(torch_dtype(self.manifest, block)), master, tuple(moments))


def torch_dtype(manifest: Manifest, block: int) -> torch.dtype:
    """The dtype of a block, by its number."""
    dtype = getattr(torch, manifest.dtype_of(manifest.blocks[block]))
    assert isinstance(dtype, torch.dtype)
    return dtype


def require_identity(folders: list[Path]) -> StoreIdentity:
    """Return the contents of the store's manifest file.

    Raises:
        StoreFormatError: there is no store. ConfigError: it lies in another number of folders.
    """
    identity = read_identity(folders[0])
    if identity is None:
        raise no_store(folders)
    require_stripes(folders, identity.stripes, ConfigError)
    return identity


def require_whole(folder: Path, manifest: Manifest, remedy: str) -> None:
    """Refuse the store of one of several servers, which holds parts of blocks; raises ConfigError."""
    for block in manifest.blocks:
        end = max(parameter.offset + parameter.numel for parameter in block.parameters)
        if block.first != 0 or block.elements < end:
            raise ConfigError(
                f"the store at {folder} is that of one of several servers: it has elements {block.first} to "
                f"{block.first + block.elements} of block {block.name}, expected 0 to {end}; {remedy}"
            )
