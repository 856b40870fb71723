"""Peak memory of process trees, read from /proc while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from luwu.observe.memory import memory_of, process_tree


def memory_of_trees(pids: Iterable[int]) -> int:
    """Proportional set size (bytes) of the processes' trees: a shared page counts once in the sum."""
    return memory_of(pid for root in pids for pid in process_tree(root))


class MemoryWatch:
    """Peak memory of process trees, sampled by a thread: of each tree (`each_bytes`) and of all (`total_bytes`).

    A process's own high-water mark counts shared pages once per process, so PSS is sampled instead. A sample
    walks page tables, so the watch rests 20 times as long as a sample took and can be paused while timing.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self.each_bytes = [0] * len(pids)
        self.total_bytes = 0
        self._pids = list(pids)
        self._running = threading.Event()
        self._running.set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            self._running.wait(0.1)
            started = time.monotonic()
            if self._running.is_set():
                now = [memory_of_trees([pid]) for pid in self._pids]
                self.each_bytes = [max(pair) for pair in zip(self.each_bytes, now, strict=True)]
                self.total_bytes = max(self.total_bytes, sum(now))
            self._stopped.wait(max(0.02, 20 * (time.monotonic() - started)))

    def pause(self) -> None:
        """Stops sampling, so that it cannot disturb a measurement."""
        self._running.clear()

    def resume(self) -> None:
        """Samples again."""
        self._running.set()

    def stop(self) -> None:
        """Ends the thread; the peaks stay."""
        self._stopped.set()
        self._thread.join()


def peak_memory_of(pids: Sequence[int]) -> MemoryWatch:
    """Starts watching the peak memory of the trees under `pids`."""
    return MemoryWatch(pids)
