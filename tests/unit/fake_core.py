"""A data plane in memory, both ends: a core that sums and applies plain gradient descent, and links that find it."""

from __future__ import annotations

import itertools
import threading

import numpy as np

from luwu.errors import LuwuError, ServerError, StepOrderError, WorkerLostError, error_named
from luwu.server.cores import CoreSettings
from luwu.store.opening import Store

CORES: dict[int, FakeCore] = {}
"""Cores by port, as links find them."""

DISKS: dict[str, Committed] = {}
"""Contents of stores by their first folder. They outlive cores, as a disk does."""

_ports = itertools.count(1)


class Committed:
    """A store's last commit."""

    def __init__(self, sizes: list[int]) -> None:
        self.blocks = [np.zeros(size, np.float32) for size in sizes]
        self.step = self.attempts = self.rolled_back = 0
        self.initialised = False


class FakeCore:
    """A `NetworkCore`. ``segments``, ``groups`` and ``allowed`` show what it was told."""

    def __init__(self, store: Store, settings: CoreSettings) -> None:
        self.settings = settings
        self.port = next(_ports)
        self.findings: list[str] = []
        CORES[self.port] = self
        sizes = [block.elements for block in store.manifest.blocks]
        self.disk = DISKS.setdefault(str(store.folders[0]), Committed(sizes))
        self.allowed: dict[int, bytes] = {}
        self.segments: dict[int, list[tuple[int, int]]] = {}
        self.groups: dict[int, list] = {}
        self.gradients: dict[int, list[np.ndarray | None]] = {}
        self.pushed = [0] * settings.workers
        self.changed = threading.Condition()
        self.error: LuwuError | None = None
        self.votes: dict[int, tuple[bool, int]] = {}
        self.results: dict[int, int] = {}
        self.max_norms: list[float | None] = []
        self.squares: float | None = None

    @property
    def initialised(self) -> bool:
        return self.disk.initialised

    def failure(self) -> LuwuError | None:
        return self.error

    def stats(self) -> dict[str, int | None]:
        counts = {name: getattr(self.disk, name) for name in ("step", "attempts", "rolled_back")}
        return counts | {"loss_scale": None, "good_steps": 0, "unwritten": 0}

    def allow_worker(self, rank: int, token: bytes) -> None:
        self.allowed[rank] = token

    def set_segments(self, block: int, segments: list[tuple[int, int]]) -> None:
        self.segments[block] = segments

    def worker_left(self, rank: int) -> None:
        if self.groups or self.votes:
            self.fail(WorkerLostError(f"worker {rank} left after step {self.disk.step}"))

    def make_durable(self, at_most_seconds: float) -> bool:
        return True

    def finish(self, at_most_seconds: float) -> bool:
        self.fail(ServerError("the server was closed"))
        return True

    def fail_run(self, message: str) -> None:
        self.fail(WorkerLostError(message))

    def fail(self, error: LuwuError) -> None:
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def close(self) -> None:
        pass

    def take_snapshot(self) -> int:
        return self.disk.step

    def begin(
        self, worker: int, groups: list, max_norm: float | None, loss_scale: tuple[float, int] | None
    ) -> tuple[int, bool, int]:
        assert loss_scale is None
        self.check()
        self.max_norms.append(max_norm)
        if worker in self.groups:
            raise StepOrderError(f"worker {worker} began twice")
        self.groups[worker] = list(groups)
        return 0, False, self.disk.attempts

    def commit(self, worker: int, roll_back: bool, pushes: int) -> None:
        with self.changed:
            self.votes[worker] = (roll_back, pushes)
            self.changed.notify_all()
            self._try_finish()

    def wait_commit(self, worker: int, at_most_seconds: float) -> tuple[int, float | None] | None:
        with self.changed:
            self.changed.wait_for(lambda: worker in self.results or self.error is not None, at_most_seconds)
            if worker in self.results:
                return self.results.pop(worker), self.squares
            self.check()
            return None

    def check(self) -> None:
        if self.error is not None:
            raise type(self.error)(str(self.error))

    def push(self, rank: int, block: int, gradient: np.ndarray) -> None:
        with self.changed:
            self.gradients.setdefault(block, [None] * self.settings.workers)[rank] = gradient
            self.pushed[rank] += 1
            self._try_finish()

    def _try_finish(self) -> None:
        ready = [rank for rank, (_, pushes) in self.votes.items() if self.pushed[rank] == pushes]
        if len(ready) < self.settings.workers:
            return
        good = not any(roll_back for roll_back, _ in self.votes.values())
        if good:
            learning_rate = self.groups[0][0][0]
            for block, gradients in self.gradients.items():
                total = sum(gradient for gradient in gradients if gradient is not None)
                self.disk.blocks[block] -= np.float32(learning_rate / self.settings.workers) * total
        self.disk.attempts += 1
        self.disk.step += good
        self.disk.rolled_back += not good
        self.results = {rank: int(good) for rank in range(self.settings.workers)}
        self.votes, self.groups, self.gradients = {}, {}, {}
        self.changed.notify_all()


class FakeLink:
    """A worker's end: link and endpoint in one. Requests are done when they are made, failures come out of `wait`."""

    arena_bytes = gradient_bytes = 1 << 20

    def __init__(self, settings) -> None:
        (server,) = settings.servers
        self.core = CORES[server.port]
        if self.core.allowed.get(settings.rank) != server.token or self.core.settings.job != server.job:
            raise ServerError("the token is not this rank's")
        self.settings = settings
        self.window = np.zeros(1 << 20, np.uint8)
        self.arena = np.zeros(1 << 20, np.uint8)
        self.error: LuwuError | None = None
        self.closed = False

    def begin_step(self, server: int, epoch: int, given_up: bool) -> None:
        assert (server, epoch, given_up) == (0, 0, False)

    def end_step(self) -> None:
        pass

    def endpoint(self, shared_window: bool = False) -> FakeLink:
        return self

    def fail(self, class_name: str, message: str) -> None:
        self.error = error_named(class_name)(message)

    def close(self) -> None:
        self.closed = True

    def stats(self) -> dict[str, object]:
        counts = {"bytes_pulled": 0, "bytes_pushed": 0, "wait_seconds": 0.0, "busy_seconds": 0.0}
        return counts | {"broken_seconds": [0.0], "silent_seconds": [0.0]}

    def count_wait(self, begun_ns: int, waited_since_ns: int) -> None:
        pass

    def register(self, nbytes: int) -> np.ndarray:
        return self.arena[:nbytes]

    def pull(self, block: int, alone: bool = False) -> int:
        values = self.core.disk.blocks[block]
        self.window[: values.nbytes] = values.view(np.uint8)
        return 0

    def release(self, block: int) -> None:
        pass

    def push(self, block: int, arena_offset: int) -> int:
        self.core.push(self.settings.rank, block, self._values(block, arena_offset))
        return 0

    def initialise(self, block: int, arena_offset: int) -> int:
        self.core.disk.blocks[block] = self._values(block, arena_offset)
        return 0

    def finish_initialise(self) -> int:
        self.core.disk.initialised = True
        return 0

    def wait(self, handle: int) -> int:
        if self.error is not None:
            raise self.error
        self.core.check()
        return 0

    def _values(self, block: int, arena_offset: int) -> np.ndarray:
        nbytes = 4 * self.settings.manifest.blocks[block].elements
        return self.arena[arena_offset : arena_offset + nbytes].view(np.float32).copy()
