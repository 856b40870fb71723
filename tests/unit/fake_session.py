"""A session and endpoint in memory, stricter than the real ones: misuse fails at once, stale use reads NaN."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from luwu.core.manifest import BlockManifest, Manifest
from luwu.core.progress import Activity
from luwu.core.protocols import COMMITTED, NOT_FINITE, VOID
from luwu.core.room import NO_WAIT
from luwu.core.trace import WorkerTrace

PAGE = 4096


@dataclass
class StoredBlock:
    """A block in the store; ``optimizers`` is one torch.optim.AdamW for each segment."""

    manifest: BlockManifest
    master: Tensor
    segments: list[tuple[int, int]]
    optimizers: list[torch.optim.AdamW] = field(default_factory=list)

    def update(self, gradient: Tensor, groups: list[tuple[float, float, float, float, float]]) -> None:
        if not self.optimizers:
            start = 0
            for end, _ in self.segments:
                self.optimizers.append(torch.optim.AdamW([nn.Parameter(self.master[start:end])], foreach=False))
                start = end
        start = 0
        for (end, group), optimizer in zip(self.segments, self.optimizers, strict=True):
            lr, beta1, beta2, eps, weight_decay = groups[group]
            settings = optimizer.param_groups[0]
            settings.update(lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
            settings["params"][0].grad = gradient[start:end].float()
            optimizer.step()
            start = end


class FakeStore:
    """Outlives sessions, as a store does."""

    def __init__(self) -> None:
        self.manifest: Manifest | None = None
        self.blocks: list[StoredBlock] = []
        self.initialised = False
        self.loss_scale: tuple[float, int] | None = None

    def dtype(self, block: int) -> torch.dtype:
        assert self.manifest is not None
        return getattr(torch, self.manifest.dtype_of(self.manifest.blocks[block]))


class FakeEndpoint:
    """The worker's end; ``log`` lists (what, block) in the order asked for.

    ``voids``: number of the next attempts in which another worker is lost.
    ``forgets_order``: the answer of `begin`.
    ``gives_back_late``: blocks are given back when their copies have ended, as native code does.
    """

    gives_back_late: ClassVar[bool] = False

    def __init__(self, store: FakeStore, window_bytes: int, arena_bytes: int) -> None:
        self.store = store
        self.log: list[tuple[str, int]] = []
        self.groups_begun: list[tuple[float, float, float, float, float]] | None = None
        self.max_grad_norm: float | None = None
        self.loss_scale: tuple[float, int] | None = None
        self.grad_norm: float | None = None
        self.voids = 0
        self.forgets_order = False
        self.trace_request = (0, False)
        self.peak_held_bytes = 0
        self.arena_bytes = arena_bytes
        self.gradient_bytes = arena_bytes
        self._memory = bytearray(b"\xff" * window_bytes)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._arena_memory = bytearray(b"\xff" * arena_bytes)
        self._arena = torch.frombuffer(self._arena_memory, dtype=torch.uint8)
        self._registered = 0
        self._requests: dict[int, tuple[str, int, int]] = {}
        self._next_handle = 1
        self._next_offset = 0
        self._held: dict[int, tuple[int, bool]] = {}  # block -> offset, waited for
        self._released = threading.Condition()
        self._collected: dict[int, Tensor] = {}
        self._pushed: set[int] = set()
        self.together: list[int] = []  # pulls that were not alone

    @property
    def window(self) -> memoryview:
        return memoryview(self._memory)

    @property
    def data_plane(self) -> FakeEndpoint:
        return self

    def note_push(self, block: int, handle: int) -> None:
        assert block in self._pushed

    @property
    def held(self) -> set[int]:
        if self.gives_back_late:
            with self._released:
                self._released.wait_for(lambda: not self._held, timeout=5)
        return set(self._held)

    def register(self, nbytes: int) -> memoryview:
        start, self._registered = self._registered, self._registered + nbytes
        assert self._registered <= self.arena_bytes, "arena overrun"
        return memoryview(self._arena_memory)[start : start + nbytes]

    def begin(self, groups, max_grad_norm=None, loss_scale=None) -> bool:
        assert self.store.initialised
        assert self.groups_begun is None, "begin within an attempt"
        self.groups_begun = list(groups)
        self.max_grad_norm = max_grad_norm
        self.loss_scale = loss_scale
        self.log.append(("begin", -1))
        return self.forgets_order

    def pull(self, block: int, alone: bool = False) -> int:
        assert block not in self._held, f"block {block} is held already"
        assert block not in self._pushed, f"block {block} pulled after its push"
        offset = self._allocate(self._block_bytes(block))
        self._held[block] = (offset, False)
        self.peak_held_bytes = max(self.peak_held_bytes, sum(map(self._block_bytes, self._held)))
        if not alone:
            self.together.append(block)
        return self._post("pull", block, offset)

    def release(self, block: int) -> None:
        with self._released:
            offset, waited = self._held.pop(block)
            self._released.notify_all()
        assert waited, f"block {block} released before its pull was waited for"
        self._bytes[offset : offset + self._block_bytes(block)] = 255
        self.log.append(("release", block))

    def push(self, block: int, arena_offset: int) -> int:
        assert self.groups_begun is not None, "push outside an attempt"
        assert self.store.blocks[block].manifest.trainable, "push of a frozen block"
        assert block not in self._pushed, f"block {block} pushed twice"
        self._pushed.add(block)
        return self._post("push", block, arena_offset)

    def initialise(self, block: int, arena_offset: int) -> int:
        assert not self.store.initialised
        return self._post("initialise", block, arena_offset)

    def finish_initialise(self) -> int:
        return self._post("finish", -1, 0)

    def commit(self, skip: bool = False) -> int:
        assert self.groups_begun is not None, "commit outside an attempt"
        assert not self._held, f"commit while holding {self._held}"
        return self._post("skip" if skip else "commit", -1, 0)

    def done(self, handle: int) -> bool:
        return handle not in self._requests

    def wait(self, handle: int) -> int:
        what, block, offset = self._requests.pop(handle, ("", -1, 0))
        if what == "pull":
            stored = self.store.blocks[block]
            self._bytes[offset : offset + self._block_bytes(block)] = stored.master.to(self.store.dtype(block)).view(
                torch.uint8
            )
            self._held[block] = (offset, True)
            return offset
        if what == "push":  # read as late as the contract allows, so that reuse before it shows
            self._collected[block] = self._read(block, offset, self.store.dtype(block))
        elif what == "initialise":
            self.store.blocks[block].master.copy_(self._read(block, offset, torch.float32))
        elif what == "finish":
            self.store.initialised = True
        elif what in ("commit", "skip"):
            return self._end_attempt(what == "skip")
        return 0

    def _end_attempt(self, skip: bool) -> int:
        for handle in [handle for handle, request in self._requests.items() if request[0] == "push"]:
            self.wait(handle)
        trainable = {index for index, block in enumerate(self.store.blocks) if block.manifest.trainable}
        assert skip or self._pushed == trainable, f"pushed {self._pushed} of {trainable}"
        scale = 1.0 if self.loss_scale is None else self.loss_scale[0]
        self._collected = {block: gradient.float() / scale for block, gradient in self._collected.items()}
        self.grad_norm = None if skip or self.max_grad_norm is None else self._clip(self.max_grad_norm)
        lost = self.voids > 0
        self.voids -= lost
        good = (
            not skip and not lost and all(bool(torch.isfinite(gradient).all()) for gradient in self._collected.values())
        )
        if good:
            assert self.groups_begun is not None
            for block, gradient in self._collected.items():
                self.store.blocks[block].update(gradient, self.groups_begun)
            self.store.loss_scale = self.loss_scale
        self._collected.clear()
        self._pushed.clear()
        self.groups_begun = None
        return COMMITTED if good else VOID if lost else 0 if skip else NOT_FINITE

    def _clip(self, max_norm: float) -> float:
        """Clip as the server does: the whole gradient's norm, and the factor in double precision."""
        norm = float(sum(float((gradient.double() ** 2).sum()) for gradient in self._collected.values())) ** 0.5
        factor = max_norm / (norm + 1e-6)
        if factor < 1.0:
            self._collected = {block: gradient * factor for block, gradient in self._collected.items()}
        return norm

    def _read(self, block: int, offset: int, dtype: torch.dtype) -> Tensor:
        manifest = self.store.blocks[block].manifest
        values = self._arena[offset : offset + manifest.elements * dtype.itemsize].view(dtype).clone()
        padding = torch.ones(manifest.elements, dtype=torch.bool)
        for parameter in manifest.parameters:
            padding[parameter.offset : parameter.offset + parameter.numel] = False
        assert bool((values[padding] == 0).all()), f"padding of block {manifest.name} is not zero"
        return values

    def _post(self, what: str, block: int, offset: int) -> int:
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._requests[handle] = (what, block, offset)
        self.log.append((what, block))
        return handle

    def _block_bytes(self, block: int) -> int:
        return self.store.blocks[block].manifest.elements * self.store.dtype(block).itemsize

    def _allocate(self, nbytes: int) -> int:
        taken = [(offset, offset + self._block_bytes(block)) for block, (offset, _) in self._held.items()]
        step = -(-nbytes // PAGE) * PAGE
        for start in (self._next_offset, 0):  # a place other than last time, to catch stale views
            while start + nbytes <= len(self._memory):
                if all(start + nbytes <= low or high <= start for low, high in taken):
                    self._next_offset = start + step
                    return start
                start += PAGE
        raise AssertionError(f"window is full: held {self._held}, asked for {nbytes} bytes")


class FakeSession:
    """A session of one worker of one, over a store in memory."""

    rank = 0
    workers = 1

    def __init__(self, store: FakeStore | None = None, *, window_bytes: int = 1 << 22, rank: int = 0) -> None:
        self.store = store or FakeStore()
        self.rank = rank
        self.step = 0
        self.trace = WorkerTrace()
        self.attempts = 0
        self.rolled_back = 0
        self.durable_step = 0
        self.loss_scale = self.store.loss_scale
        self.room = NO_WAIT
        self.segments: dict[int, list[tuple[int, int]]] = {}
        self._window_bytes = window_bytes
        self._endpoint: FakeEndpoint | None = None

    @property
    def endpoint(self) -> FakeEndpoint:
        assert self._endpoint is not None
        return self._endpoint

    def profile_bytes(self) -> int:
        return 0

    def tell_progress(self, look: Callable[[], Activity | None]) -> None:
        self.look = look

    def has_store(self, manifest: Manifest) -> bool:
        return self.store.manifest == manifest

    def attach(self, manifest: Manifest, *, shared_window: bool = False, kept: Sequence[str] = ()) -> bool:
        assert Manifest.from_json(manifest.to_json()) == manifest
        fresh = self.store.manifest is None
        if fresh:
            self.store.manifest = manifest
            self.store.blocks = [
                StoredBlock(block, torch.full((block.elements,), float("nan")), [(block.elements, 0)])
                for block in manifest.blocks
            ]
        assert self.store.manifest == manifest
        self._endpoint = FakeEndpoint(self.store, self._window_bytes, self._arena_bytes(manifest))
        return fresh

    def wait_durable(self) -> int:
        self.durable_step = self.step
        return self.step

    def initialised(self) -> None:
        assert self.store.initialised
        assert not any(bool(torch.isnan(block.master).any()) for block in self.store.blocks)

    def set_segments(self, block: int, segments) -> None:
        assert self.endpoint.groups_begun is None
        assert segments[-1][0] == self.store.blocks[block].manifest.elements
        assert [end for end, _ in segments] == sorted({end for end, _ in segments})
        self.segments[block] = list(segments)
        self.store.blocks[block].segments = list(segments)

    def count_step(self, committed: bool) -> None:
        self.attempts += 1
        self.step += committed
        self.rolled_back += not committed

    def _arena_bytes(self, manifest: Manifest) -> int:
        """Return the server's arena bytes: held blocks' gradients, two of the largest other's, and first values."""
        sizes = [block.elements * getattr(torch, manifest.dtype_of(block)).itemsize for block in manifest.blocks]
        pages = [-(-nbytes // PAGE) * PAGE for nbytes in sizes]
        trainable = [(block, nbytes) for block, nbytes in zip(manifest.blocks, pages, strict=True) if block.trainable]
        held = sum(nbytes for block, nbytes in trainable if block.name.startswith("<root>"))
        others = max((nbytes for block, nbytes in trainable if not block.name.startswith("<root>")), default=0)
        largest = max(-(-block.elements * 4 // PAGE) * PAGE for block in manifest.blocks)
        return max(held + 2 * others, largest)
