"""Forecast of servers and stores for a model that does not exist yet, by the rules that servers themselves use."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from luwu.core import native
from luwu.core.division import divide
from luwu.core.manifest import DEFAULT_CHUNK_ELEMENTS, ROOT_NAME, BlockManifest, Manifest, element_bytes
from luwu.core.native import block_specs

Keeps = Literal["none", "tail", "all"]
LISTED_ELEMENTS = 2**36
"""Most elements of a model whose chunks are listed, which takes a moment."""


@dataclass(frozen=True)
class Forecast:
    """Bytes of each server (all have nearly the same: of the largest), and of a step's disk traffic over all of them.

    ``minimum_bytes`` is the smallest memory budget; ``memory_bytes`` is what is used of the budget, divided into
    ``window_bytes`` of parameters, ``pinned_state_bytes`` and ``state_buffer_bytes`` of states, and ``arena_bytes`` of
    gradients. ``parameters_read_bytes`` are of one pass over the model; ``written_pinned_bytes`` are those of
    ``written_bytes`` whose states stay in memory. The largest chunk has ``chunk_state_bytes``, and a record of
    ``chunk_record_bytes``.

    Where gradients are kept until a step is decided, they have ``kept_bytes`` of memory, and ``kept_disk_bytes`` are
    written and read. A step that is no commit point writes ``written_between_bytes``. Where only those are kept that
    updates are behind with, memory has room for ``tail_share`` of all.
    """

    file_bytes: tuple[int, ...]
    minimum_bytes: int
    memory_bytes: int
    window_bytes: int
    pinned_state_bytes: int
    state_buffer_bytes: int
    arena_bytes: int
    parameters_read_bytes: int
    states_read_bytes: int
    written_bytes: int
    written_pinned_bytes: int
    chunk_state_bytes: int
    chunk_record_bytes: int
    written_between_bytes: int
    kept_bytes: int
    kept_disk_bytes: int
    tail_share: float


def forecast(
    block_elements: Sequence[int],
    *,
    dtype: str,
    optimizer: str,
    folders: int,
    memory_bytes: int,
    workers: int,
    servers: int = 1,
    summed: bool = False,
    keeps: Keeps = "none",
    adapter_elements: Sequence[int] = (),
) -> Forecast:
    """Lay a model out and divide a memory budget, without a disk.

    Args:
        block_elements: elements of the root, then of every other block, padding included; all are trained, unless
            there are adapters.
        dtype: dtype of the parameters, float32 or bfloat16.
        optimizer: its kind in manifests, such as adamw.
        folders: number of folders of each server's store.
        memory_bytes: budget of each server; one below the minimum counts as that.
        workers: number of workers of a step, which have their gradients in the server's memory.
        servers: number of servers that share each block.
        summed: gradients come over UDP, added up in float32 as if they were one worker's.
        keeps: gradients that wait until a step is decided: all, as where not every step is a commit point, or those of
            the step's tail.
        adapter_elements: elements of each further block, beside which all others are frozen.

    Raises:
        ConfigError: the optimizer is not known, or a server would have nothing.
    """
    whole = manifest_of_sizes(block_elements, adapter_elements, dtype=dtype, optimizer=optimizer)
    largest = max(divide(whole, servers).parts, key=lambda part: sum(block.elements for block in part.blocks))
    found = native.plan_store(
        block_specs(largest),
        DEFAULT_CHUNK_ELEMENTS,
        optimizer,
        folders,
        memory_bytes,
        1 if summed else workers,
        summed,
        keeps,
    )
    return Forecast(
        file_bytes=tuple(found["file_bytes"]),
        minimum_bytes=found["minimum_bytes"],
        memory_bytes=found["total_bytes"],
        window_bytes=found["window_bytes"],
        pinned_state_bytes=found["pinned_state_bytes"],
        state_buffer_bytes=found["state_buffer_bytes"],
        arena_bytes=found["arena_bytes"],
        parameters_read_bytes=servers * found["parameters_read_bytes"],
        states_read_bytes=servers * found["states_read_bytes"],
        written_bytes=servers * found["written_bytes"],
        written_pinned_bytes=servers * found["written_pinned_bytes"],
        chunk_state_bytes=found["chunk_state_bytes"],
        chunk_record_bytes=found["chunk_record_bytes"],
        written_between_bytes=servers * found["written_between_bytes"],
        kept_bytes=found["kept_bytes"],
        kept_disk_bytes=servers * found["kept_disk_bytes"],
        tail_share=found["tail_share"],
    )


def manifest_of_sizes(
    block_elements: Sequence[int], adapter_elements: Sequence[int] = (), *, dtype: str, optimizer: str
) -> Manifest:
    """Return the manifest of a model that is known by the elements of its blocks, see `forecast`."""
    elements = [*block_elements, *adapter_elements]
    names = [ROOT_NAME] + [str(number) for number in range(1, len(elements))]
    frozen = len(block_elements) if adapter_elements else 0
    blocks = tuple(
        BlockManifest(name, number >= frozen, (), count)
        for number, (name, count) in enumerate(zip(names, elements, strict=True))
    )
    return Manifest(dtype, DEFAULT_CHUNK_ELEMENTS, blocks, optimizer)


def least_memory(manifest: Manifest, workers: int) -> int:
    """Return the smallest memory budget in bytes of one server; at once for a model of any size that is all trained.

    Args:
        manifest: the model's blocks; parameters do not count.
        workers: number of workers of a step.

    Raises:
        ConfigError: the optimizer is not known.
    """
    blocks = manifest.blocks
    if sum(block.elements for block in blocks) > LISTED_ELEMENTS and all(block.trainable for block in blocks):
        return computed_least_memory(manifest, workers)
    found = native.plan_store(block_specs(manifest), manifest.chunk_elements, manifest.optimizer, 1, 1, workers, False)
    return int(found["minimum_bytes"])


def computed_least_memory(manifest: Manifest, workers: int) -> int:
    """Compute `least_memory` without a list of chunks, for a model that has more of them than state buffers."""
    held, others = 0, []
    chunks: dict[str, int] = {}
    for block in manifest.blocks:
        dtype = manifest.dtype_of(block)
        size = block.elements * element_bytes(dtype)
        if block.name.startswith(ROOT_NAME):
            held += _rounded_up(size, native.PAGE_BYTES)
        else:
            others.append(size)
        chunks[dtype] = max(chunks.get(dtype, 0), _chunk_elements(block.elements, manifest.chunk_elements))
    states = max(
        forecast(
            [chunk], dtype=dtype, optimizer=manifest.optimizer, folders=1, memory_bytes=1, workers=1
        ).chunk_state_bytes
        for dtype, chunk in chunks.items()
    )
    return least_without_states(held, others, workers) + native.LEAST_STATE_BUFFERS * states


def least_without_states(held: int, others: Sequence[int], workers: int) -> int:
    """Return the bytes that parameters and gradients take in the smallest memory budget; it grows with every argument.

    Args:
        held: bytes of parameters in the root.
        others: bytes of each other block.
        workers: number of workers of a step.
    """
    held = _rounded_up(held, native.PAGE_BYTES)
    sizes = sorted((_rounded_up(size, native.PAGE_BYTES) for size in others), reverse=True)
    largest = sizes[0] if sizes else 0
    # A few blocks that are much larger than the rest have places of their own, the rest take turns in slots.
    own = [0, *itertools.accumulate(sizes)]
    window = min([own[-1], *(before + (2 * workers + 2) * size for before, size in zip(own, sizes, strict=False))])
    return held + workers * (held + 2 * largest) + window


def _chunk_elements(elements: int, most: int) -> int:
    """Return the elements of a block's first chunk. No other chunk of it has more."""
    chunks = -(-elements // most)
    return min(elements, _rounded_up(-(-elements // chunks), native.CHUNK_STEP))


def _rounded_up(count: int, step: int) -> int:
    return -(-count // step) * step


WindowSchedule = native.WindowSchedule


def window_schedule(manifest: Manifest, memory_bytes: int) -> WindowSchedule:
    """Return the schedule of a server with this budget, whose workers are one to it, as over UDP.

    Raises:
        MemoryBudgetError: the budget is below what the model needs.
    """
    return WindowSchedule(block_specs(manifest), manifest.chunk_elements, manifest.optimizer, memory_bytes)
