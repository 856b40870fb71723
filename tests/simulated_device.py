"""A device without a GPU: a worker's blocks go through native code to the twin of harness/native, whose memory torch's
CPU kernels compute in. The twin checks that nothing is read or written out of turn.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.unit.fake_session import FakeEndpoint
from torch import Tensor

from luwu.core.protocols import Endpoint
from luwu.worker.device_staging import Accelerator, DeviceStaging
from luwu.worker.devices import Device
from luwu.worker.flatten import Block, Unit

LIBRARY = Path(__file__).parent.parent / "build/native/harness/native/libluwu_twin.so"
"""The native tests build it: ``make test`` does so first."""

_DLPACK_CPU = 1
_READS, _WRITES = 0, 1


class _Access(ctypes.Structure):
    _fields_ = [
        ("memory", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("writes", ctypes.c_int),
        ("what", ctypes.c_char_p),
    ]


class _Settings(ctypes.Structure):
    _fields_ = [
        ("seed", ctypes.c_uint64),
        ("most_delay_microseconds", ctypes.c_uint32),
        ("bytes_per_second", ctypes.c_double),
        ("seconds_per_second", ctypes.c_double),
    ]


_SEED = 1
_MOST_DELAY_MICROSECONDS = 200


class Twin:
    """The twin that is loaded in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(LIBRARY))
        self._library.twin_finding.restype = ctypes.c_char_p
        for name in ("twin_findings", "twin_registered_bytes", "twin_device_bytes", "twin_most_device_bytes"):
            getattr(self._library, name).restype = ctypes.c_size_t
        self._library.twin_launch.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(_Access), ctypes.c_size_t,
            ctypes.c_double,
        ]  # fmt: skip
        settings = _Settings(_SEED, _MOST_DELAY_MICROSECONDS, 0.0, 0.0)
        self._library.twin_reset(ctypes.byref(settings))

    @contextmanager
    def late(self, microseconds: int) -> Iterator[None]:
        """Let each piece of a stream's work be up to so late."""
        self._library.twin_delay(ctypes.c_uint32(microseconds))
        try:
            yield
        finally:
            self._library.twin_delay(ctypes.c_uint32(_MOST_DELAY_MICROSECONDS))

    def findings(self) -> list[str]:
        """Return the findings of accesses out of turn since the last call."""
        found = [self._library.twin_finding(index).decode() for index in range(self._library.twin_findings())]
        self._library.twin_forget_findings()
        return found

    @property
    def registered_bytes(self) -> int:
        return int(self._library.twin_registered_bytes())

    @property
    def device_bytes(self) -> int:
        return int(self._library.twin_device_bytes())

    def access(self, tensor: Tensor, *, writes: bool, what: str) -> None:
        """Note that the stream that torch computes on makes this access now."""
        access = _Access(tensor.data_ptr(), tensor.nbytes, _WRITES if writes else _READS, what.encode())
        self._library.twin_launch(None, None, None, ctypes.byref(access), 1, 0.0)


@cache
def the_twin() -> Twin:
    """Return the twin of a process, for all tests: a failed test may leave users, so it must not start anew."""
    return Twin()


class SimulatedStaging(DeviceStaging):
    """Notes what torch reads and writes, when it may begin to and when it has ended."""

    def __init__(
        self,
        units: list[Unit],
        endpoint: Endpoint,
        arena: Tensor,
        kept: list[Block],
        accelerator: Accelerator,
        twin: Twin,
    ) -> None:
        super().__init__(units, endpoint, arena, kept, accelerator)
        self._twin = twin
        self._taken: dict[int, Tensor] = {}
        self._written: dict[int, Tensor] = {}

    def take(self, block: Block) -> Tensor:
        flat = self._taken[block.index] = super().take(block)
        self._twin.access(flat, writes=False, what="compute begins to read")
        return flat

    def release(self, block: Block) -> None:
        flat = self._taken.pop(block.index, None)
        if flat is not None:
            self._twin.access(flat, writes=False, what="compute ends reading")
        super().release(block)

    def gradient(self, block: Block) -> Tensor:
        flat = self._written[block.index] = super().gradient(block)
        self._twin.access(flat, writes=True, what="compute begins to write")
        return flat

    def push(self, block: Block) -> None:
        self._twin.access(self._written.pop(block.index), writes=True, what="compute ends writing")
        super().push(block)


def compute_on_device(monkeypatch: pytest.MonkeyPatch, device_memory: str | None = None) -> None:
    """Let models that are parallelized from here on compute on the device, where they ask for the CPU.

    ``device_memory``: for blocks that stay there, where a model does not say how much.
    """
    device = SimulatedDevice(the_twin(), device_memory)
    monkeypatch.setattr("luwu.worker.parallelize.choose_device", lambda _: device)
    monkeypatch.setattr(FakeEndpoint, "gives_back_late", True)


class SimulatedDevice(Device):
    """Stands in for the CPU."""

    def __init__(self, twin: Twin, device_memory: str | None) -> None:
        own = torch.device("cpu")
        super().__init__(own, Accelerator(own, str(LIBRARY), 0, _DLPACK_CPU, lambda: 0, lambda: None))
        self._twin = twin
        self._device_memory = device_memory

    def room_for_blocks(self, device_memory: int | str | None) -> int:
        return super().room_for_blocks(self._device_memory if device_memory is None else device_memory)

    def staging(self, units: list[Unit], endpoint: Endpoint, arena: Tensor, kept: list[Block]) -> SimulatedStaging:
        assert self._accelerator is not None
        return SimulatedStaging(units, endpoint, arena, kept, self._accelerator, self._twin)
