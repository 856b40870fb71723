"""Child processes of a benchmark: started together, asked for samples in turn, their memory watched, cleaned up."""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from harness.warm import start_program
from kit.common import PROGRAMS, ROOT, BenchmarkError, peers_python
from kit.memory import MemoryWatch

if TYPE_CHECKING:
    from harness.network import Host

CHILD_LOG_TAIL = 3000


def environment(threads: int, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with what every measured child needs; `threads` bounds OpenMP and torch.

    Every side gets tcmalloc where it is installed, as `luwu train` gives it to workers: all of them gain from it.
    """
    values = dict(os.environ)
    values.update(
        PYTHONPATH=str(PROGRAMS),
        OMP_NUM_THREADS=str(threads),
        GLOO_SOCKET_IFNAME="lo",
        DS_ACCELERATOR="cpu",
        TORCH_EXTENSIONS_DIR=str(ROOT / "build" / "peers" / "torch_extensions"),
    )
    values["PATH"] = os.pathsep.join([str(peers_python().parent), values["PATH"]])
    allocator = ctypes.util.find_library("tcmalloc_minimal")
    if allocator:
        values.setdefault("LD_PRELOAD", allocator)
    values.update(extra or {})
    return values


def run_json(argv: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 600) -> dict[str, Any]:
    """Runs a child to its end and returns the JSON object on its last line.

    Raises BenchmarkError with the end of its standard error when it fails, overruns or prints no such line.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = start_program(
            list(argv), env=dict(env or environment(os.cpu_count() or 1)), stdout=subprocess.PIPE, stderr=errors,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise BenchmarkError(f"{argv[1:3]} took longer than {timeout:.0f} s") from None
        finally:
            if process.poll() is None:
                _kill(process)
        errors.seek(0)
        if process.returncode:
            raise BenchmarkError(f"{argv[1:3]} exited with {process.returncode}:\n{errors.read()[-CHILD_LOG_TAIL:]}")
        lines = output.strip().splitlines()
        if not lines:
            raise BenchmarkError(f"{argv[1:3]} printed nothing:\n{errors.read()[-CHILD_LOG_TAIL:]}")
        return json.loads(lines[-1])


@contextlib.contextmanager
def in_a_session(
    command: Sequence[str], env: Mapping[str, str], log: Path, output: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Context manager: run a program in a session of its own, whose processes are killed at the end.

    Its errors go to the end of a log, and what it prints, too, unless there is another ``output``.
    """
    with log.open("a") as errors:
        process = subprocess.Popen(
            command, env=dict(env), stdin=subprocess.PIPE, stdout=errors if output is None else output, stderr=errors,
            text=True, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            _kill(process)
        process.communicate()


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends the process group that the child leads (children are started with a session of their own)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Side:
    """A side of a comparison: `ranks` children of one program that stay alive and give a sample when asked.

    Both sides of a benchmark are up at the same time and sampled in turn, so a drifting machine hits both. An idle
    side sleeps in a read. The children get their settings as one JSON argument and RANK, WORLD_SIZE, LUWU_RENDEZVOUS
    (a file in a folder of their own) in the environment. With `server`, one more child runs that program with the same
    settings; it answers every sample too (`server_sample`), and its memory is the last of `memory.each_bytes`. With
    `hosts` each rank runs on one of these, in its network namespace. `programs` is the folder of the programs and of
    the modules that they share.
    """

    def __init__(
        self, name: str, program: str, settings: Mapping[str, Any], *, ranks: int = 1, threads: int | None = None,
        python: Path | None = None, server: str | None = None, env: Mapping[str, str] | None = None,
        timeout: float = 600, hosts: Sequence[Host] | None = None, programs: Path = PROGRAMS,
    ) -> None:  # fmt: skip
        self.name, self.ranks, self.timeout = name, ranks, timeout
        self._hosts = hosts
        self.server_sample: dict[str, Any] = {}
        self._has_server = server is not None
        self._env = {"PYTHONPATH": str(programs), **(env or {})}
        self._scratch = tempfile.TemporaryDirectory(prefix="luwu-bench-")
        self._children: list[subprocess.Popen[str]] = []
        command = [str(python or sys.executable), "", json.dumps(dict(settings))]
        for rank, path in enumerate([program] * ranks + ([server] if server else [])):
            command[1] = str(programs / path)
            self._start(command, rank, threads or max(1, (os.cpu_count() or 1) // ranks))
        self.memory = MemoryWatch([child.pid for child in self._children])

    def _start(self, command: list[str], rank: int, threads: int) -> None:
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LUWU_RENDEZVOUS": str(Path(self._scratch.name) / "rendezvous"),
            **self._env,
        }
        where = self._hosts[rank].inside() if self._hosts else contextlib.nullcontext()
        with self._log(rank).open("w") as errors, where:
            child = start_program(
                command, env=environment(threads, variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, start_new_session=True, bufsize=1,
            )  # fmt: skip
        self._children.append(child)

    def _log(self, rank: int) -> Path:
        return Path(self._scratch.name) / f"stderr.{rank}"

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends what still runs and removes the children's files."""
        self.memory.stop()
        for child in self._children:
            if child.poll() is None:
                _kill(child)
        self._scratch.cleanup()

    def _replies(self) -> list[dict[str, Any]]:
        late = threading.Timer(self.timeout, lambda: [_kill(child) for child in self._children])
        late.start()
        try:
            replies = [self._reply(rank) for rank in range(len(self._children))]
        finally:
            late.cancel()
        if self._has_server:
            self.server_sample = replies.pop()
        return replies

    def _reply(self, rank: int) -> dict[str, Any]:
        stream = self._children[rank].stdout
        line = stream.readline() if stream else ""
        if line:
            return json.loads(line)
        code = self._children[rank].wait()
        tail = self._log(rank).read_text()[-CHILD_LOG_TAIL:]
        raise BenchmarkError(f"{self.name}: rank {rank} ended with {code} (limit {self.timeout:.0f} s):\n{tail}")

    def _tell(self, word: str) -> None:
        for child in self._children:
            if child.stdin:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(word + "\n")
                    child.stdin.flush()

    def wait_ready(self) -> None:
        """Returns when every child has started up and warmed up; raises BenchmarkError when one fails."""
        self._replies()
        self.memory.pause()

    def sample(self) -> list[dict[str, Any]]:
        """Return a sample of every rank."""
        self._tell("sample")
        return self._replies()

    def stop(self) -> list[dict[str, Any]]:
        """Take a last sample with the memory watch on; return the children's final words (they have ended after it)."""
        self.memory.resume()
        self.sample()
        self.memory.pause()
        self._tell("stop")
        finals = self._replies()
        for child in self._children:
            child.wait(self.timeout)
        return finals

    @property
    def peak_bytes(self) -> int:
        """Peak memory of all the children together."""
        return self.memory.total_bytes


def slowest(samples: Sequence[Mapping[str, Any]], key: str) -> float:
    """The largest of the ranks' values: a group is as fast as its last member."""
    return max(float(sample[key]) for sample in samples)
