"""A request to become a Python program: its arguments and surroundings, and how a process takes them over."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

LONGEST_REQUEST = 256 * 1024
"""Bytes: an environment and the arguments."""

MOST_DESCRIPTORS = 32
CLONE_NEWNET = 0x40000000
EXECUTE_CHILD = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Request:
    """A program to become.

    Args:
        arguments: what follows the interpreter: ``-m MODULE`` or a file, and the program's own arguments.
        folder: its working directory.
        environment: all of its environment.
        own_session: True: it leads a session.
        numbers: the numbers that the descriptors passed along have in it.
        standbys: processes that wait to become its first children; see `harness.warm.standby`.
    """

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    own_session: bool
    numbers: list[int]
    standbys: int = 0

    def send(self, to: socket.socket, descriptors: list[int]) -> None:
        """Send it with the descriptors that `numbers` is about and one of the network namespace of this thread."""
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            socket.send_fds(to, [json.dumps(asdict(self)).encode()], [namespace, *descriptors])
        finally:
            os.close(namespace)


def receive(source: socket.socket) -> tuple[Request, list[int]] | None:
    """Return the next request with its descriptors, the namespace first; None: the other end has been closed."""
    message, descriptors, _, _ = socket.recv_fds(source, LONGEST_REQUEST, MOST_DESCRIPTORS)
    return (Request(**json.loads(message)), descriptors) if message else None


def given_to_popen(popen: subprocess.Popen[Any], values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the values that `subprocess.Popen` gives its own `_execute_child`, by name."""
    return EXECUTE_CHILD.bind(popen, *values).arguments


def close_pipe_ends(popen: subprocess.Popen[Any], given: dict[str, Any]) -> None:
    """Close the child's ends of the pipes that `subprocess.Popen` has made."""
    popen._child_created = True  # type: ignore[attr-defined]
    ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    popen._close_pipe_fds(*(given[name] for name in ends))  # type: ignore[attr-defined]


def request_for(arguments: list[str], given: dict[str, Any], standbys: int = 0) -> tuple[Request, list[int]]:
    """Return the request for what `given_to_popen` has found, and its descriptors."""
    streams = {0: given["p2cread"], 1: given["c2pwrite"], 2: given["errwrite"]}
    placed = {number: number if descriptor == -1 else descriptor for number, descriptor in streams.items()}
    placed |= {number: number for number in given["pass_fds"]}
    environment = os.environ if given["env"] is None else given["env"]
    folder = str(Path(given["cwd"] or ".").resolve())
    request = Request(arguments, folder, dict(environment), given["start_new_session"], list(placed), standbys)
    return request, list(placed.values())


def take_over(request: Request, descriptors: list[int]) -> None:
    """Give this process, a fork, what the request asks for: descriptors, session, namespace, folder, environment."""
    if request.own_session and os.getsid(0) != os.getpid():
        os.setsid()
    above = max(request.numbers) + 1  # where no place of another is
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    namespace, *others = moved
    _enter(namespace)
    for number, descriptor in zip(request.numbers, others, strict=True):
        os.dup2(descriptor, number)
    for descriptor in moved:
        os.close(descriptor)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    if (threads := request.environment.get("OMP_NUM_THREADS")) and (torch := sys.modules.get("torch")):
        torch.set_num_threads(int(threads))  # OpenMP has read the variable long ago


def _enter(namespace: int) -> None:
    if not os.path.sameopenfile(namespace, own := os.open("/proc/self/ns/net", os.O_RDONLY)):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    os.close(own)


def run(request: Request) -> NoReturn:
    """Run the program as `__main__` and exit as it does, without taking apart what was imported, which takes long."""
    status = 1
    try:
        _run_as_main(request)
        status = 0
    except SystemExit as error:
        status = _status(error)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does: it waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def _status(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def _run_as_main(request: Request) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "harness"]:
        del sys.modules[name]  # the program must find it itself
    program, *arguments = request.arguments
    named = program == "-m"
    first = request.folder if named else str(Path(program).resolve().parent)
    sys.path[:0] = [first, *filter(None, request.environment.get("PYTHONPATH", "").split(os.pathsep))]
    if named:
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(request.arguments)
        runpy.run_path(program, run_name="__main__")
