"""The manifest: the parameters of a store, and the place of each in its block."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from luwu.core.errors import StoreFormatError
from luwu.core.json_fields import MALFORMED, explained, listed, read_object, whole, words
from luwu.core.quantities import shown

DEFAULT_CHUNK_ELEMENTS = 262_144
"""Elements of a chunk: 1 MiB of float32, large enough for a disk and small enough to start work early."""

DEFAULT_OPTIMIZER = "adamw"
"""Optimizer whose states a store keeps where none is named, as in manifests from before there was a choice."""

_REMAINDERS = "remainders"

DTYPES = ("float32", "bfloat16", "float16")
"""Dtypes of parameters. The store keeps a float32 master of parameters that are not float32."""

MOST_ELEMENTS = 2**47
"""Bound of a block's elements in a manifest that is read."""

MOST_CHUNK_ELEMENTS = 2**31

MOST_CHUNKS = 2**28
"""Bound of a store's chunks, which the native core lists in memory."""

ROOT_NAME = "<root>"
"""Name of the root block, all parameters outside the other blocks: workers hold it through the whole step."""

LEAST_SHARE = 4
"""A module outside the repeated ones becomes a block if it has this fraction of the largest one's parameters."""


def element_bytes(dtype: str) -> int:
    """Return the bytes of an element of one of `DTYPES`."""
    return 4 if dtype == "float32" else 2


@dataclass(frozen=True)
class ParameterManifest:
    """A parameter: its first name in the model, shape, and first element within its block.

    ``aliases`` are its other names, where it is tied: a checkpoint may use any of them.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    numel: int
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class BlockManifest:
    """A block: ``elements`` counts the padding that follows each parameter.

    One of several servers has ``elements`` of the model's block from ``first`` on, and all of its ``parameters``.
    ``dtype`` is that of its parameters and gradients; None: the manifest's.
    """

    name: str
    trainable: bool
    parameters: tuple[ParameterManifest, ...]
    elements: int
    first: int = 0
    dtype: str | None = None


@dataclass(frozen=True)
class Manifest:
    """Manifest of a job's parameters. ``dtype`` is one of `DTYPES`; blocks are numbered as listed and may have another.

    ``optimizer`` is the kind whose states the store keeps beside them, such as ``adamw``.
    ``whole_masters``: beside bfloat16 parameters the store keeps float32 masters, not the 16 bits that the parameters
    lack of them, as all but those of ``adamw8bit`` did before there was a choice.
    """

    dtype: str
    chunk_elements: int
    blocks: tuple[BlockManifest, ...]
    optimizer: str = DEFAULT_OPTIMIZER
    whole_masters: bool = False

    @property
    def is_part(self) -> bool:
        """True where it has parts of blocks alone: it is that of one of several servers."""
        ends = [max(parameter.offset + parameter.numel for parameter in block.parameters) for block in self.blocks]
        return any(block.first > 0 or block.elements < end for block, end in zip(self.blocks, ends, strict=True))

    def dtype_of(self, block: BlockManifest) -> str:
        """Return the dtype of a block's parameters and gradients."""
        return block.dtype or self.dtype

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of the blocks, each once, the manifest's own first."""
        return tuple(dict.fromkeys((self.dtype, *map(self.dtype_of, self.blocks))))

    @property
    def names_masters(self) -> bool:
        """True if its text says that masters are remainders, which a reader would not expect otherwise."""
        return not self.whole_masters and _had_whole_masters(self)

    def to_json(self) -> str:
        """Write as JSON text, the same bytes for equal manifests."""
        raw = asdict(self)
        del raw["whole_masters"]
        if self.names_masters:
            raw["masters"] = _REMAINDERS
        for block in raw["blocks"]:
            if block["dtype"] is None:  # as in manifests from before there was a choice
                del block["dtype"]
        return json.dumps(raw, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read what `to_json` wrote.

        Raises:
            StoreFormatError: the text is not a manifest.
        """
        try:
            raw = read_object(text)
            manifest = cls(
                _dtype_from(raw["dtype"]),
                whole(raw, "chunk_elements", 1, MOST_CHUNK_ELEMENTS),
                tuple(_block_from(block) for block in listed(raw["blocks"], "blocks")),
                words(raw.get("optimizer", DEFAULT_OPTIMIZER), "optimizer"),
            )
            if (masters := raw.get("masters")) not in (None, _REMAINDERS):
                raise ValueError(f"masters {shown(masters)}, which is not {_REMAINDERS}")
            if masters is None and _had_whole_masters(manifest):
                manifest = replace(manifest, whole_masters=True)
            chunks = sum(-(-block.elements // manifest.chunk_elements) for block in manifest.blocks)
            if chunks > MOST_CHUNKS:
                raise ValueError(f"{chunks} chunks, which are more than {MOST_CHUNKS}")
        except MALFORMED as error:
            raise StoreFormatError(
                f"manifest: expected JSON with dtype, chunk_elements and blocks, found {explained(error)}; "
                "the store is damaged or is no store: put the file back from snapshots/STEP or a copy (`luwu store "
                "verify` then reads the store), or choose another folder"
            ) from error
        return manifest


def _had_whole_masters(manifest: Manifest) -> bool:
    """Return True if stores of this kind had float32 masters before there was a choice."""
    trained = (manifest.dtype_of(block) for block in manifest.blocks if block.trainable)
    return manifest.optimizer != "adamw8bit" and "bfloat16" in trained


def first_difference(expected: Manifest, found: Manifest, *, with_chunks: bool = False) -> str | None:
    """Name the first thing in which the store's manifest ``found`` is not what the model ``expected``.

    ``chunk_elements`` is the store's own business, not the model's, so on one host it is not compared. Over a network
    (``with_chunks``) it is what packets are counted by, and both sides must agree.
    """
    if expected.optimizer != found.optimizer:
        return f"optimizer: expected {expected.optimizer}, found {found.optimizer}"
    if expected.dtype != found.dtype:
        return f"dtype: expected {expected.dtype}, found {found.dtype}"
    for mine, theirs in zip(expected.blocks, found.blocks, strict=False):
        if mine.name == theirs.name and expected.dtype_of(mine) != found.dtype_of(theirs):
            return f"dtype of block {mine.name}: expected {expected.dtype_of(mine)}, found {found.dtype_of(theirs)}"
    if with_chunks and expected.chunk_elements != found.chunk_elements:
        return f"chunk size: expected {expected.chunk_elements} elements, found {found.chunk_elements}"
    parameter = _first_parameter_difference(expected, found)
    if parameter is not None:
        return parameter
    for index, (mine, theirs) in enumerate(zip(expected.blocks, found.blocks, strict=False)):
        if _extent(mine) != _extent(theirs):
            return f"block {index}: expected {_describe_block(mine)}, found {_describe_block(theirs)}"
    if len(expected.blocks) != len(found.blocks):
        return f"number of blocks: expected {len(expected.blocks)}, found {len(found.blocks)}"
    return None


def _first_parameter_difference(expected: Manifest, found: Manifest) -> str | None:
    mine, theirs = _described_parameters(expected), _described_parameters(found)
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        left, right = mine.get(name, "no such parameter"), theirs.get(name, "no such parameter")
        if left != right:
            return f"parameter {name}: expected {left}, found {right}"
    return None


def _described_parameters(manifest: Manifest) -> dict[str, str]:
    return {
        parameter.name: _describe_parameter(block, parameter)
        for block in manifest.blocks
        for parameter in block.parameters
    }


def _describe_parameter(block: BlockManifest, parameter: ParameterManifest) -> str:
    kind = "trainable" if block.trainable else "frozen"
    shape = list(parameter.shape)
    return f"shape {shape} ({kind}, element {parameter.offset} of block {block.name})"


def _extent(block: BlockManifest) -> tuple[str, bool, int, int]:
    return block.name, block.trainable, block.first, block.elements


def _describe_block(block: BlockManifest) -> str:
    where = f" from {block.first}" if block.first else ""
    return f"{block.name} ({'trainable' if block.trainable else 'frozen'}, {block.elements} elements{where})"


def _block_from(raw: dict[str, Any]) -> BlockManifest:
    parameters = tuple(_parameter_from(entry) for entry in listed(raw["parameters"], "parameters"))
    trainable, dtype = raw["trainable"], raw.get("dtype")
    if not isinstance(trainable, bool):
        raise ValueError(f"trainable {shown(trainable)}, which is neither true nor false")
    return BlockManifest(
        words(raw["name"], "name"),
        trainable,
        parameters,
        whole(raw, "elements", 1, MOST_ELEMENTS),
        whole(raw, "first", 0, MOST_ELEMENTS, 0),
        None if dtype is None else _dtype_from(dtype),
    )


def _parameter_from(raw: dict[str, Any]) -> ParameterManifest:
    sizes = [{"shape": size} for size in listed(raw["shape"], "shape")]
    return ParameterManifest(
        name=words(raw["name"], "name"),
        shape=tuple(whole(size, "shape", 0, MOST_ELEMENTS) for size in sizes),
        offset=whole(raw, "offset", 0, MOST_ELEMENTS),
        numel=whole(raw, "numel", 0, MOST_ELEMENTS),
        aliases=tuple(words(alias, "aliases") for alias in listed(raw.get("aliases", []), "aliases")),
    )


def _dtype_from(value: object) -> str:
    if value not in DTYPES:
        raise ValueError(f"dtype {shown(value)}, which is none of {', '.join(DTYPES)}")
    return str(value)
