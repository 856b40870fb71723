"""The template's end: it imports what workers need once, and forks a worker whenever the launcher asks for one.

Launcher and template talk over a socket that keeps messages whole, in JSON. The launcher asks for a worker with
``{"number": n, "rank": r}`` and the descriptors of its log and of its reports. The fork says that it is there with
``{"number": n}`` and a descriptor of its process, before it does anything else. The template tells its end with
``{"number": n, "status": s}``. It ends when the launcher has closed the socket.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

from luwu.core.exits import Exit
from luwu.launch.reports import REPORT_DESCRIPTOR
from luwu.launch.starting import die_with

TEMPLATE_DESCRIPTOR = "LUWU_TEMPLATE_DESCRIPTOR"
"""Environment variable of a template: its end of the socket to the launcher."""

LONGEST_MESSAGE = 4096
"""Bytes."""


def encode(**message: int) -> bytes:
    """Return a message as bytes."""
    return json.dumps(message).encode()


def become_worker(prepare: Callable[[], None]) -> bool:
    """Serve as a template, return False where the launcher has ended, and return True in each fork.

    A fork finds its rank in RANK and the descriptor of its reports in LUWU_REPORT_DESCRIPTOR, and dies with the
    template.

    Args:
        prepare: imports what workers need. Its error is raised in each fork, which has it in its log.
    """
    die_with(os.getppid())  # a launcher that has ended before this line has closed the socket
    # A signal to all processes of a run is for launcher and workers. A fork that it comes to early gets it later.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    launcher = socket.socket(fileno=int(os.environ.pop(TEMPLATE_DESCRIPTOR)))
    failure: Exception | None = None
    gc.disable()  # imports make no garbage; looking for some would take a tenth of their time
    try:
        prepare()
    except Exception as error:
        failure = error
    gc.enable()
    gc.freeze()  # what was imported stays, so no fork needs to look at it, and its pages stay shared
    with launcher, selectors.DefaultSelector() as events:
        forked = _Forking(launcher, events).serve()
    if not forked:
        return False
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if failure is not None:
        raise failure
    return True


class _Forking:
    """Forks that run, and the launcher's requests for more.

    ``events`` has the launcher's socket, and for each fork a descriptor of its process, with its pid and its number.
    """

    def __init__(self, launcher: socket.socket, events: selectors.BaseSelector) -> None:
        self._launcher = launcher
        self._events = events
        self._pid = os.getpid()
        events.register(launcher, selectors.EVENT_READ)

    def serve(self) -> bool:
        """Fork a worker for each request, and return True in it; return False when the launcher has ended."""
        while True:
            for key, _ in self._events.select():
                if key.fileobj is not self._launcher:
                    self._tell_end(key)
                    continue
                message, descriptors, _, _ = socket.recv_fds(self._launcher, LONGEST_MESSAGE, 2)
                if not message:
                    return False
                asked = json.loads(message)
                if self._try_to_fork(asked["number"], descriptors):
                    _take_place(asked["rank"], *descriptors)
                    return True
                for descriptor in descriptors:
                    os.close(descriptor)

    def _try_to_fork(self, number: int, descriptors: list[int]) -> bool:
        """Fork a process and return True in it. Where that fails, tell it to the launcher and in the worker's log."""
        try:
            if len(descriptors) != 2:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return self._fork(number)
        except OSError as error:  # too many processes or files
            with suppress(OSError):
                os.write(descriptors[0] if descriptors else 2, f"no process for a worker: {error}\n".encode())
            self._tell(number=number, status=Exit.FAILED)
            return False

    def _fork(self, number: int) -> bool:
        with suppress(OSError):
            sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                self._begin(number)
            except BaseException:
                os._exit(Exit.FAILED)  # it is no template, so it must not go on as one
            return True
        try:
            self._events.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, number))
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        return False

    def _begin(self, number: int) -> None:
        """Say to the launcher, in a fork, that it is there."""
        die_with(self._pid)
        for key in self._events.get_map().values():
            if key.fileobj is not self._launcher:
                os.close(key.fd)
        process = os.pidfd_open(os.getpid())
        socket.send_fds(self._launcher, [encode(number=number)], [process])
        os.close(process)

    def _tell_end(self, key: selectors.SelectorKey) -> None:
        pid, number = key.data
        self._events.unregister(key.fd)
        os.close(key.fd)
        self._tell(number=number, status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _tell(self, **message: int) -> None:
        with suppress(OSError):  # the launcher has ended, which the next message tells
            self._launcher.send(encode(**message))


def _take_place(rank: int, output: int, reports: int) -> None:
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.environ["RANK"] = str(rank)
    os.environ[REPORT_DESCRIPTOR] = str(reports)
