"""The end that asks for programs: each is a `subprocess.Popen` whose process is a fork of the warm one."""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.warm.request import close_pipe_ends, given_to_popen, request_for

ADDRESS = "HARNESS_WARM_PYTHON"
"""Environment variable: path of the warm process's socket. Without it the interpreter starts every program."""

LUWU_MODULES = (
    "torch", "numpy", "matplotlib.figure", "matplotlib.backends.backend_agg", "rich.progress", "luwu.cli.main",
    "luwu.train.training", "luwu.server", "luwu.session.remote", "luwu.session.local", "luwu.observe.plots",
)  # fmt: skip
"""Modules that commands and workers of LuWu import."""

STATUS_BYTES = 4


@contextmanager
def serve_warm(modules: Sequence[str]) -> Iterator[str]:
    """Start a process that imports modules and forks until the end; yield its address. Programs outlive it."""
    with (
        tempfile.TemporaryDirectory(prefix="warm-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        address = str(Path(folder, "socket"))
        listener.bind(address)
        listener.listen(64)
        own, given = socket.socketpair()
        with own:
            with given:
                descriptors = listener.fileno(), given.fileno()
                program = Path(__file__).with_name("server.py")
                process = subprocess.Popen(
                    [sys.executable, program, *map(str, descriptors), *modules], stdin=subprocess.DEVNULL,
                    pass_fds=descriptors, env=os.environ | {"OMP_WAIT_POLICY": "passive"},
                )  # fmt: skip
            try:
                yield address
            finally:
                process.kill()
                process.wait()


def start_program(command: Sequence[str], standbys: int = 0, **settings: Any) -> subprocess.Popen[Any]:
    """Start a program: where `ADDRESS` names a warm process, a module or a file of this Python as a fork of it.

    Anything else starts as ever, and so does what has a `sitecustomize`, which must be imported first.

    Args:
        command: the program and its arguments.
        standbys: how many of its first children that are Python modules start as quickly.
        settings: those of `subprocess.Popen`: streams, text, environment, folder, session and descriptors.
    """
    address = os.environ.get(ADDRESS)
    if address is None or not _is_python(command) or _has_sitecustomize(settings.get("env") or os.environ):
        return subprocess.Popen(command, **settings)
    return _Forked(_connection(address), list(command), standbys, settings)


def _is_python(command: Sequence[str]) -> bool:
    return command[0] == sys.executable and (command[1] == "-m" or not command[1].startswith("-"))


def _has_sitecustomize(environment: Mapping[str, str]) -> bool:
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    return any(Path(path, "sitecustomize.py").exists() for path in paths if path)


class _Connection:
    """A connection to the warm process. Any thread may use it."""

    def __init__(self, address: str) -> None:
        self._asking = threading.Lock()
        self._requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.connect(address)

    def fork(self, arguments: list[str], standbys: int, given: dict[str, Any]) -> tuple[int, int]:
        """Return the process id of a new program, and a pipe that brings its wait status."""
        request, descriptors = request_for(arguments, given, standbys)
        status, told = os.pipe()
        try:
            with self._asking:
                request.send(self._requests, [told, *descriptors])
                answer = self._requests.recv(64)
        finally:
            os.close(told)
        if not answer:
            raise ChildProcessError("the warm process has ended")
        return int(answer), status


@functools.cache
def _connection(address: str) -> _Connection:
    return _Connection(address)


class _Forked(subprocess.Popen[Any]):
    def __init__(self, connection: _Connection, command: list[str], standbys: int, settings: dict[str, Any]) -> None:
        self._connection, self._standbys = connection, standbys
        super().__init__(command, **settings)

    def _execute_child(self, *values: Any) -> None:
        given = given_to_popen(self, values)
        self.pid, self._status = self._connection.fork(given["args"][1:], self._standbys, given)
        close_pipe_ends(self, given)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        ready = select.poll()
        ready.register(self._status, select.POLLIN)
        if not ready.poll(0 if wait_flags & os.WNOHANG else None):
            return 0, 0
        told = os.read(self._status, STATUS_BYTES)
        os.close(self._status)
        return self.pid, int.from_bytes(told, "little") if told else signal.SIGKILL  # it ended with the warm process

    def _internal_poll(self, *unused: Any, **also_unused: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode
