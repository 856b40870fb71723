"""Network namespaces: making, entering, and taking away what a killed run left behind."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from harness.network.errors import NetworkError, NetworkUnavailableError

FOLDER = Path("/run/netns")
CLONE_NEWNET = 0x40000000
COMMAND_SECONDS = 20
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21}

_libc = ctypes.CDLL(None, use_errno=True)
_serial = itertools.count()


def wait_until(condition: Callable[[], bool], what: str, timeout_seconds: float = 60.0) -> None:
    """Poll until the condition holds.

    Raises:
        NetworkError: it did not in time; names `what`.
    """
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise NetworkError(f"{what}: not within {timeout_seconds} s")
        time.sleep(0.001)


def command(*arguments: str, lines: Iterable[str] = ()) -> str:
    """Run a program of iproute2, with `lines` as its input; returns what it prints."""
    try:
        done = subprocess.run(
            arguments,
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
    except FileNotFoundError as error:
        raise NetworkUnavailableError(f"{arguments[0]} is not installed (apt-get install iproute2)") from error
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def start_time(pid: int | str) -> str | None:
    """Return the begin of a process, in clock ticks since boot; with the pid, a name that is never used again."""
    status = _status(pid)
    return status[19] if status else None


def has_ended(pid: int) -> bool:
    """Return True if it runs no more, even if nobody has asked yet how it ended."""
    status = _status(pid)
    return not status or status[0] in "ZX"


def _status(pid: int | str) -> list[str]:
    """Fields of /proc/PID/stat after the name, from the state on; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def prefix() -> str:
    """Return the prefix of a network's namespaces: owner, time, and a number."""
    return f"luwu-{os.getpid()}-{start_time('self')}-{next(_serial)}-"


def sweep() -> list[str]:
    """Remove the namespaces whose owners have ended, and end what still runs in them; returns their names."""
    stale = []
    for path in FOLDER.glob("luwu-*"):
        parts = re.fullmatch(r"luwu-(\d+)-(\d+)-\d+-.+", path.name)
        if parts and start_time(parts[1]) != parts[2]:
            stale.append(path.name)
    remove(stale)
    return stale


def remove(names: Sequence[str]) -> None:
    """End all processes in these namespaces, and remove them with their interfaces; those gone are no error."""
    if not names:
        return
    end_processes_in(names)
    try:
        command("ip", "-force", "-batch", "-", lines=[f"netns delete {name}" for name in names])
    except NetworkError:
        if any((FOLDER / name).exists() for name in names):
            raise


def end_processes_in(names: Iterable[str]) -> None:
    """Kill what runs in namespaces that are ours, where nothing runs that we did not start; wait until it has ended."""
    identities = set()
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            identities.add((FOLDER / name).stat().st_ino)

    def kill_all() -> bool:
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _namespace_of(path) in identities]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(kill_all, "the end of processes in the network")


def _namespace_of(process: Path) -> int | None:
    """Return the namespace of another process; None when it has ended, even if nobody has asked how."""
    try:
        return None if process.name == str(os.getpid()) else (process / "ns/net").stat().st_ino
    except OSError:
        return None


@contextlib.contextmanager
def entered(name: str) -> Iterator[None]:
    """Move this thread into a namespace; sockets and processes made meanwhile stay there."""
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_namespace(target)
        finally:
            os.close(target)
        try:
            yield
        finally:
            _set_namespace(outside)
    finally:
        os.close(outside)


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise NetworkError(f"setns: {os.strerror(number)}")


@functools.cache
def missing() -> str | None:
    """Why there can be no test networks here, or None; tries it out once."""
    if os.geteuid() != 0:
        return "test networks need root"
    effective = int(re.findall(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[0], 16)
    lacking = [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]
    if lacking:
        return f"test networks need {' and '.join(lacking)}"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"test networks need {program} (apt-get install iproute2)"
    name = prefix() + "trial"
    try:
        command("ip", "netns", "add", name)
        try:
            setup = ["link add name left type veth peer name right", "link add name br0 type bridge"]
            command("ip", "-n", name, "-batch", "-", lines=setup)
            limit = ["qdisc add dev left root tbf rate 1mbit burst 16000 latency 10ms"]
            command("tc", "-n", name, "-batch", "-", lines=limit)
        finally:
            remove([name])
    except NetworkError as error:
        return f"test networks are refused here: {error}"
    return None
