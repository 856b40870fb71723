"""Runs of `luwu train` that are slowed on purpose: their disk, their link, one worker, or their server's updates.

Control groups (version 1) limit the disk and the processors; a network namespace of its own limits the link. That
needs root.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from kit.common import BenchmarkError, NotInstalledError, require_tool

GROUPS = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS = 100_000
LOOK_SECONDS = 0.05
UPDATE_THREAD = "luwu-5-update"
RUN_SECONDS = 600.0
PORT = 7070
"""Port of the server in a network namespace, where nobody else is."""

_serial = itertools.count()


class Slowness(NamedTuple):
    """Limits of a run; 0: none of that kind.

    Attributes:
        disk: bytes a second that the store's disk reads, and as many that it writes.
        link: bits a second between workers and server, both ways together; they are two launchers then.
        worker: share of a processor that the first worker has.
        updates: share of a processor that the server's update threads have together.
    """

    disk: int = 0
    link: int = 0
    worker: float = 0.0
    updates: float = 0.0


FREE = Slowness()


class SlowRun(NamedTuple):
    """A run: its flags, and what slows it."""

    flags: Mapping[str, object]
    slowness: Slowness = FREE

    def words(self) -> list[str]:
        """Return the flags as a command's words; those that are true or false have no value."""
        found = []
        for name, value in self.flags.items():
            if isinstance(value, bool):
                found.append(f"--{name}" if value else f"--no-{name}")
            else:
                found += [f"--{name}", str(value)]
        return found


def require_limits() -> None:
    """Raise NotInstalledError where this user or this system cannot limit a run."""
    if os.geteuid() != 0:
        raise NotInstalledError("limits of processes need root")
    for controller in ("blkio", "cpu"):
        if not (GROUPS / controller / "cgroup.procs").exists():
            raise NotInstalledError(f"the control group {controller} of version 1 is not mounted below {GROUPS}")
    for tool in ("ip", "tc", "unshare", "nsenter"):
        require_tool(tool)


def train(run: SlowRun, settings: Path, folder: Path) -> Path:
    """Train in a new folder, slowed, and return it; raises BenchmarkError where the run fails."""
    with ExitStack() as stack:
        slow = run.slowness
        inside = [sys.executable, "-m", "luwu.cli", "train", "--config", str(settings), "--run", str(folder)]
        command = [*inside, *run.words()]
        if slow.link:
            workers = run.flags.get("workers", 1)
            command += ["--listen", f"127.0.0.1:{PORT}", "--workers-here", "0"]
            command = _behind_link(command, slow.link)
        disk = stack.enter_context(_disk_limit(slow.disk, settings)) if slow.disk else None
        processes = [_start(stack, command, folder.with_suffix(".log"), disk)]
        if slow.link:
            _wait_for(lambda: (folder / "job.key").exists(), processes)
            join = [sys.executable, "-m", "luwu.cli", "train", "--join", f"luwu://127.0.0.1:{PORT}"]
            join += ["--key-file", str(folder / "job.key"), "--workers-here", str(workers)]
            join += ["--run", str(folder.with_suffix(".joined"))]
            net = ["nsenter", "--target", str(processes[0].pid), "--net"]
            processes.append(_start(stack, [*net, *join], folder.with_suffix(".joined.log"), None))
        _wait_for(lambda: _rows(folder) > 0, processes)
        if slow.worker:
            stack.enter_context(_processor_share(slow.worker, "cgroup.procs", _workers_of(processes[0])[:1]))
        if slow.updates:
            stack.enter_context(_processor_share(slow.updates, "tasks", _threads_of(processes[0], UPDATE_THREAD)))
        _wait_for(lambda: all(process.poll() is not None for process in processes), processes)
    return folder


def explained(folder: Path) -> dict[str, Any]:
    """Return what `luwu explain` says of a run."""
    command = [sys.executable, "-m", "luwu.cli", "explain", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"luwu explain: {done.stderr.strip()}")
    return dict(json.loads(done.stdout))


def _behind_link(command: Sequence[str], rate_bits: int) -> list[str]:
    queue = f"tc qdisc add dev lo root tbf rate {rate_bits} burst 256kb latency 50ms"
    return ["unshare", "--net", "sh", "-c", f'ip link set lo up && {queue} && exec "$@"', "sh", *command]


def _start(stack: ExitStack, command: Sequence[str], log: Path, group: Path | None) -> subprocess.Popen[bytes]:
    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=enter)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher that still runs; its workers end with it."""
    if process.poll() is None:
        process.kill()
    process.wait()


def _wait_for(condition: Any, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + RUN_SECONDS
    while not condition():
        failed = [process for process in processes if process.poll()]
        if failed or time.monotonic() > deadline:
            raise BenchmarkError(f"a slowed run has {'failed' if failed else 'not ended'}: {processes[0].args}")
        time.sleep(LOOK_SECONDS)


def _rows(folder: Path) -> int:
    with suppress(OSError):
        return (folder / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def _workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the processes of workers: forks of a launcher's one template."""
    return [worker for template in _children(process.pid) for worker in _children(template)]


def _threads_of(process: subprocess.Popen[bytes], name: str) -> list[int]:
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    return [int(thread.name) for thread in threads if (thread / "comm").read_text().strip() == name]


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@contextmanager
def _group(controller: str) -> Iterator[Path]:
    """Make a control group, which is removed when its processes have ended or have been moved out."""
    path = GROUPS / controller / f"luwu-{os.getpid()}-{next(_serial)}"
    path.mkdir()
    try:
        yield path
    finally:
        _empty(path)
        path.rmdir()


def _empty(path: Path) -> None:
    deadline = time.monotonic() + 10
    while (threads := (path / "tasks").read_text().split()) and time.monotonic() < deadline:
        for thread in threads:
            with suppress(OSError):
                (path.parent / "tasks").write_text(thread)


@contextmanager
def _disk_limit(bytes_per_second: int, place: Path) -> Iterator[Path]:
    device = place.stat().st_dev
    limit = f"{os.major(device)}:{os.minor(device)} {bytes_per_second}"
    with _group("blkio") as path:
        for way in ("read", "write"):
            (path / f"blkio.throttle.{way}_bps_device").write_text(limit)
        yield path


@contextmanager
def _processor_share(share: float, members: str, ids: Sequence[int]) -> Iterator[None]:
    """Limit the processes, or threads, that are written to a group's file of members."""
    with _group("cpu") as path:
        (path / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (path / "cpu.cfs_quota_us").write_text(str(max(1000, round(share * PERIOD_MICROSECONDS))))
        for each in ids:
            (path / members).write_text(str(each))
        yield
