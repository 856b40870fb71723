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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.warm.request import Request, close_pipe_ends, given_to_popen, request_for

ADDRESS = "HARNESS_WARM_PYTHON"
"""Environment variable: path of the warm process's socket. Without it the interpreter starts every program."""

LUWU_MODULES = (
    "torch", "numpy", "matplotlib.figure", "matplotlib.backends.backend_agg", "rich.progress", "luwu.cli.main",
    "luwu.train.training", "luwu.server", "luwu.session.remote", "luwu.session.local", "luwu.observe.plots",
)  # fmt: skip
"""Modules that commands and workers of LuWu import."""

_READ_AT_START = ("PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONIOENCODING", "PYTHONUTF8")
_OF_THE_WARM = {name: os.environ.get(name) for name in _READ_AT_START}
"""Variables that the interpreter reads when it starts, as the warm process has them; a test may have changed some."""

MOST_PASSED = 24
"""Descriptors that a request may have beside its own."""

MOST_CHARACTERS = 100_000
"""Characters that the values of a request's environment may have, because a socket's message has a bound."""

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

    Anything else starts as ever, and so does what asks for something that a fork cannot have: a `sitecustomize`, which
    must be imported first, another hash seed or other settings of the interpreter, a function before it starts.

    Args:
        command: the program and its arguments.
        standbys: how many of its first children that are Python modules start as quickly.
        settings: those of `subprocess.Popen`: streams, text, environment, folder, session and descriptors.
    """
    address = os.environ.get(ADDRESS)
    if address is None or not _is_python(command) or not _fork_can_be(settings):
        return subprocess.Popen(command, **settings)
    return _Forked(_connection(address), list(command), standbys, settings)


def _is_python(command: Sequence[str]) -> bool:
    return command[0] == sys.executable and (command[1] == "-m" or not command[1].startswith("-"))


def _fork_can_be(settings: Mapping[str, Any]) -> bool:
    """Return True if a fork can have these settings of `subprocess.Popen`."""
    environment = settings.get("env") or os.environ
    small = len(settings.get("pass_fds", ())) <= MOST_PASSED and sum(map(len, environment.values())) < MOST_CHARACTERS
    same = all(environment.get(name) == value for name, value in _OF_THE_WARM.items())
    return small and same and "preexec_fn" not in settings and not _has_sitecustomize(environment)


def _has_sitecustomize(environment: Mapping[str, str]) -> bool:
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    return any(Path(path, "sitecustomize.py").exists() for path in paths if path)


class _Connection:
    """A connection to the warm process. Any thread may use it."""

    def __init__(self, address: str) -> None:
        self._asking = threading.Lock()
        self._address = address
        self._requests: socket.socket | None = None

    def fork(self, arguments: list[str], standbys: int, given: dict[str, Any]) -> tuple[int, int]:
        """Return the process id of a new program, and a pipe that brings its wait status."""
        request, descriptors = request_for(arguments, given, standbys)
        status, told = os.pipe()
        try:
            with self._asking:
                answer = self._ask(request, [told, *descriptors])
        finally:
            os.close(told)
        if not answer:
            raise ChildProcessError("the warm process has ended")
        return int(answer), status

    def _ask(self, request: Request, descriptors: list[int]) -> bytes:
        """Return the answer to a request. After an exception the next one begins anew: its answer is another."""
        if self._requests is None:
            self._requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._requests.connect(self._address)
        try:
            request.send(self._requests, descriptors)
            return self._requests.recv(64)
        except BaseException:
            self._requests.close()
            self._requests = None
            raise


@functools.cache
def _connection(address: str) -> _Connection:
    return _Connection(address)


class _Forked(subprocess.Popen[Any]):
    def __init__(self, connection: _Connection, command: list[str], standbys: int, settings: dict[str, Any]) -> None:
        self._connection, self._standbys = connection, standbys
        self._told: bytes | None = None
        self._alive: int | None = None
        super().__init__(command, **settings)

    def _execute_child(self, *values: Any) -> None:
        given = given_to_popen(self, values)
        self.pid, self._status = self._connection.fork(given["args"][1:], self._standbys, given)
        with suppress(ProcessLookupError):  # it has ended, and the warm process has told how
            self._alive = os.pidfd_open(self.pid)
        close_pipe_ends(self, given)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Return the process id and the wait status once it has ended; without the warm process: as if killed."""
        patience = 0 if wait_flags & os.WNOHANG else None
        if self._told is None:
            if not _readable(self._status, patience):
                return 0, 0
            self._told = os.read(self._status, STATUS_BYTES)
            os.close(self._status)
        if not self._told and self._alive is not None and not _readable(self._alive, patience):
            return 0, 0
        if self._alive is not None:
            os.close(self._alive)
        return self.pid, int.from_bytes(self._told, "little") if self._told else signal.SIGKILL

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


def _readable(descriptor: int, seconds: float | None) -> bool:
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    return bool(ready.poll(seconds))
