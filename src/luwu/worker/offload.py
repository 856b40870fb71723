"""Activation offload: the inputs of a unit, which checkpointing keeps, wait for backward elsewhere.

Inputs are put away as soon as a unit runs, and brought back in the opposite order, each while the one after is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from luwu.core.errors import ConfigError, StepOrderError
from luwu.core.room import NO_WAIT, Room
from luwu.worker.offload_disk import DiskShelf

Where = str | os.PathLike[str] | None
"""Place for activations. ``host``: pinned host memory, of a GPU; a path: a file in that folder; None: they stay."""


class Shelf(Protocol):
    """Shelf of bytes: one-dimensional uint8 tensors of the device."""

    def put(self, data: Tensor) -> Any:
        """Start to put data away, and return its place; it must not change until `clear`."""
        ...

    def fetch(self, place: Any) -> Callable[[], Tensor]:
        """Start to bring data back; the result waits for it and returns it, to be used on the current stream."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


@dataclass(eq=False)
class _Saved:
    """A tensor that was put away; ``coming`` waits for it, once it was asked for."""

    number: int
    generation: int
    place: Any
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    original: Tensor | None  # the tensor itself, if it was not put away
    version: int
    coming: Callable[[], Tensor] | None = None


class Offload:
    """Takes the tensors that autograd saves, while one of its `hooks` is active, to a shelf, and back in backward."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._generation = 0
        self._saved: list[_Saved] = []  # to be brought back from the last to the first

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Return what does it, as a context."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def clear(self) -> None:
        """Forget what was put away: backward is over, or the attempt was given up."""
        self._generation += 1
        self._saved.clear()
        self._shelf.clear()

    def _pack(self, tensor: Tensor) -> _Saved:
        """Put activations away. Masks and other tensors that need no gradient are shared by all units, and stay."""
        stays = not (tensor.requires_grad and tensor.layout is torch.strided and tensor.numel())
        dense = tensor.detach()
        place = None
        if not stays:
            if not dense.is_contiguous():
                dense = dense.clone(memory_format=torch.preserve_format)
            place = self._shelf.put(dense.as_strided((dense.numel(),), (1,)).view(torch.uint8))
        saved = _Saved(
            len(self._saved), self._generation, place, dense.size(), dense.stride(), dense.dtype,
            tensor if stays else None, tensor._version,
        )  # fmt: skip
        if not stays:
            self._saved.append(saved)
        return saved

    def _unpack(self, saved: _Saved) -> Tensor:
        if saved.original is not None:
            if saved.original._version != saved.version:
                raise RuntimeError(
                    f"a tensor of shape {list(saved.size)} needed for backward was changed in place: expected version "
                    f"{saved.version}, found {saved.original._version}"
                )
            return saved.original
        if saved.generation != self._generation:
            raise StepOrderError("backward of an earlier forward: its activations are gone; run the forward again")
        coming = saved.coming or self._shelf.fetch(saved.place)
        saved.coming = None
        before = self._saved[saved.number - 1] if saved.number else None
        data = coming()
        if before is not None and before.coming is None:
            before.coming = self._shelf.fetch(before.place)
        return data.view(saved.dtype).as_strided(saved.size, saved.stride)


class PinnedShelf:
    """Pinned host memory: copies run on a stream of their own, beside the work of the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def put(self, data: Tensor) -> Tensor:
        """Copy after the work that computes the data."""
        host = torch.empty(data.shape, dtype=data.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(data, non_blocking=True)
        data.record_stream(self._stream)  # its memory is not used again before
        return host

    def fetch(self, place: Tensor) -> Callable[[], Tensor]:
        """Copy at once, beside what the device does."""
        with torch.cuda.stream(self._stream):
            data = torch.empty(place.shape, dtype=place.dtype, device=self._device)
            data.copy_(place, non_blocking=True)
        copied = self._stream.record_event()

        def wait() -> Tensor:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(copied)
            data.record_stream(current)
            return data

        return wait

    def clear(self) -> None:
        """Do nothing: places are freed when nobody refers to them."""


def make_offload(where: Where, device: torch.device, room: Room = NO_WAIT, *, checkpoint: bool) -> Offload | None:
    """Choose by ``where``; ``room`` is the wait for a full disk.

    Raises:
        ConfigError: without checkpointing, on a CPU for ``host``, or a folder that cannot be written.
    """
    if where is None:
        return None
    if not checkpoint:
        raise ConfigError("offload: expected checkpoint=True, which keeps the inputs of blocks alone, found False")
    if where == "host":
        if device.type != "cuda":
            raise ConfigError(
                f"offload: expected 'host' for device cuda, found device {device}, whose activations are in the host's "
                "memory already; name a folder to have them on its disk"
            )
        return Offload(PinnedShelf(device))
    return Offload(DiskShelf(Path(where), device, room))
