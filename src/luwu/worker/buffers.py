"""Buffers of a unit whose forward runs twice: running statistics must be updated once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_NOT_COUNTED = ("running_mean", "running_var")


@dataclass
class _Changed:
    """A buffer that the forward changed: its place, and its value before."""

    module: nn.Module
    name: str
    before: Tensor


def has_other_values(tensor: Tensor, before: Tensor) -> bool:
    """Return True if a tensor has other values than a copy of it; on the CPU alone, as a GPU's answer makes it wait."""
    return tensor.device.type == "cpu" and not torch.equal(tensor.detach(), before)


class BufferHistory:
    """Changes of a forward to a module's buffers: its recompute starts from the same values and changes nothing.

    A copy lives on only of buffers that a forward changes: not of tables and masks. Torch counts writes in place, but
    not those of batch norms to their running statistics, and none through ``.data``: so values are compared.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._changed: list[_Changed] = []

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Context manager around the forward: note the buffers that it changes."""
        found = [
            (inner, name, buffer, buffer._version, buffer.detach().clone())
            for inner in self._module.modules()
            for name, buffer in inner._buffers.items()
            if buffer is not None
        ]
        yield
        self._changed = [
            _Changed(inner, name, before)
            for inner, name, buffer, version, before in found
            if inner._buffers.get(name) is not buffer
            or buffer._version != version
            or name in _NOT_COUNTED
            or has_other_values(buffer, before)
        ]

    @contextmanager
    def recompute(self) -> Iterator[None]:
        """Context manager around the recompute: buffers have their values from before the forward inside."""
        now = [changed.module._buffers[changed.name] for changed in self._changed]
        for changed in self._changed:
            changed.module._buffers[changed.name] = changed.before
        try:
            yield
        finally:
            for changed, buffer in zip(self._changed, now, strict=True):
                changed.module._buffers[changed.name] = buffer
