"""The disk's own limit, measured with fio: the same request size and the same mix of reads and writes, O_DIRECT."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from kit.common import BenchmarkError, require_tool

# Pattern, queue depth, processes. "streams" is one process that reads and one that writes, as luwu's threads do.
SETTINGS = (("rw", 4, 1), ("rw", 16, 1), ("rw", 4, 2), ("streams", 8, 1), ("streams", 16, 1))
READ_BYTES = 3 << 20  # what luwu reads at once: master, m, v of a chunk of 256Ki elements
WRITE_BYTES = 7 << 19  # and writes: the same and the bf16 parameters


class DiskLimit:
    """Bytes per second, reads and writes together, that the disk under `folder` gives.

    `read_share` is the part of the bytes that is read (0 to 1), `file_bytes` the size of the file worked on. Requests
    have the sizes of luwu's. The two best of a few settings of fio are found first; the better one at each time counts.
    """

    def __init__(self, folder: Path, *, read_share: float, file_bytes: int, seconds: float = 2.0) -> None:
        self._fio = require_tool("fio")
        self._scratch = tempfile.TemporaryDirectory(dir=folder, prefix="fio-")
        self._target = Path(self._scratch.name) / "data"
        self._shares = {"read": read_share, "write": 1 - read_share}
        reads, writes = read_share / READ_BYTES, (1 - read_share) / WRITE_BYTES
        self._reads_percent = round(100 * reads / (reads + writes))
        self._seconds = seconds
        _fill(self._target, file_bytes)
        self.settings = sorted(SETTINGS, key=lambda setting: self._measure(*setting))[-2:]

    def __enter__(self) -> DiskLimit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch.cleanup()

    def sample(self) -> float:
        """Return one measurement in bytes per second."""
        return max(self._measure(*setting) for setting in self.settings)

    def _measure(self, pattern: str, depth: int, processes: int) -> float:
        common = [
            self._fio, f"--filename={self._target}", f"--size={self._target.stat().st_size}", f"--iodepth={depth}",
            f"--numjobs={processes}", "--group_reporting", "--direct=1", "--ioengine=io_uring", "--time_based",
            f"--runtime={self._seconds}", "--fallocate=none", "--norandommap", "--randrepeat=0", "--output-format=json",
            f"--bs={READ_BYTES},{WRITE_BYTES}",
        ]  # fmt: skip
        if pattern == "streams":
            jobs = ["--name=read", "--rw=read", "--name=write", "--rw=write"]
        else:
            jobs = ["--name=limit", f"--rw={pattern}", f"--rwmixread={self._reads_percent}"]
        command = common + jobs
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 2 * self._seconds)
        if done.returncode:
            raise BenchmarkError(f"fio failed: {done.stderr.strip()[-500:]}")
        jobs_done = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
        moved = {way: sum(job[way]["io_bytes"] for job in jobs_done) for way in self._shares}
        seconds = max(job[way]["runtime"] for job in jobs_done for way in self._shares) / 1000
        if pattern == "streams":  # each goes as fast as it can: what counts is the mix that both can keep up
            return min(moved[way] / share for way, share in self._shares.items() if share) / seconds
        return sum(moved.values()) / seconds


def _fill(path: Path, size: int) -> None:
    """Writes real data: a hole would be read without the disk."""
    block = bytes(range(256)) * 4096
    with open(path, "wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])
        file.flush()
        os.fsync(file.fileno())
