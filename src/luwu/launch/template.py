"""The launcher's end of the workers' template: a process that imports torch once, and that every worker is a fork of.

Importing torch takes seconds, in which the others wait for a worker that is started again. A fork takes milliseconds,
and shares the memory of what was imported. `luwu.launch.forking` has the other end, and what the two say.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from luwu.core.room import Room, create
from luwu.launch.forking import LONGEST_MESSAGE, TEMPLATE_DESCRIPTOR, encode


class Fork:
    """A process that a template has forked, or will fork when it is ready. Its functions are those of `Popen`."""

    def __init__(self, look: Callable[[float | None], None]) -> None:
        self._look = look
        self.returncode: int | None = None
        self._descriptor: int | None = None  # of the process, in this one
        self._signals: list[int] = []  # that it has not got: they were sent before it was forked

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None: it has not ended."""
        self._look(0)
        return self.returncode

    def wait(self) -> int:
        """Wait for its end and return the exit status."""
        while self.returncode is None:
            self._look(None)
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended; one that was not forked yet gets it then."""
        self._look(0)
        self._signals.append(number)
        self._deliver()

    @property
    def begun(self) -> bool:
        """True while it runs."""
        return self._descriptor is not None

    def begin(self, descriptor: int) -> None:
        """Note that it was forked."""
        self._descriptor = descriptor
        self._deliver()

    def _deliver(self) -> None:
        while self._descriptor is not None and self._signals:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, self._signals.pop(0))

    def end(self, status: int) -> None:
        """Note its end, and wait for it where it has not come yet."""
        self.returncode = status
        if self._descriptor is not None:
            gone = select.poll()  # `select` takes no descriptor above 1023
            gone.register(self._descriptor, select.POLLIN)
            gone.poll()
            os.close(self._descriptor)
            self._descriptor = None


class Template:
    """The launcher's end. One thread uses it and its forks.

    Args:
        module: name of the module that calls `become_worker`; it takes the job's file as its argument.
        job: the job's file.
        log: file for the template's own output, made anew.
        environment: environment of the template and of all its forks.
        room: the wait for a full disk where the log is made.

    Raises:
        OSError: the log or the process cannot be made. StoreSpaceError: there was no room for the log in time.
    """

    def __init__(self, module: str, job: Path, log: Path, environment: dict[str, str], room: Room) -> None:
        self._numbers = itertools.count()
        self._forks: dict[int, Fork] = {}  # those that have not ended
        self._own, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with given, room.retry(lambda: create(log), log) as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, str(job)],
                    env=environment | {TEMPLATE_DESCRIPTOR: str(given.fileno())},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that Ctrl-C reaches the launcher alone
                    pass_fds=[given.fileno()],
                )
        except BaseException:
            self._own.close()
            raise

    @property
    def ended(self) -> bool:
        """True once it has ended, and its forks with it."""
        self._look(0)
        return self._process.returncode is not None

    def fork(self, rank: int, output: int, reports: int) -> Fork:
        """Ask for a worker and return it at once.

        Args:
            rank: its rank.
            output: descriptor of its log.
            reports: descriptor of the socket that its reports go to.

        Raises:
            OSError: it cannot be asked.
        """
        number = next(self._numbers)
        self._forks[number] = fork = Fork(self._look)
        if self._process.returncode is not None:
            self._end()
            return fork
        self._own.settimeout(None)
        try:
            socket.send_fds(self._own, [encode(number=number, rank=rank)], [output, reports])
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is ending, which the next look notices
        except OSError:
            del self._forks[number]
            raise
        return fork

    def kill(self) -> None:
        """Kill it, and with it all of its forks."""
        self._process.kill()
        self._end()

    def _look(self, seconds: float | None) -> None:
        """Take the messages that are there; wait this long for the first one. None: without a limit."""
        while self._process.returncode is None:
            self._own.settimeout(seconds)
            seconds = 0
            try:
                more = self._take_message()
            except (BlockingIOError, TimeoutError):
                return
            if not more:
                self._end()

    def _take_message(self) -> bool:
        """Take the next message; False: there will be none any more."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._own, LONGEST_MESSAGE, 1)
        except ConnectionResetError:
            return False
        if message:
            self._take(message, descriptors)
        return bool(message)

    def _take(self, message: bytes, descriptors: list[int]) -> None:
        told = json.loads(message)
        if "status" in told:
            self._forks.pop(told["number"]).end(told["status"])
        elif descriptors:
            self._forks[told["number"]].begin(descriptors[0])
        else:
            raise OSError(errno.EMFILE, "no descriptor is left for a worker's process")

    def _end(self) -> None:
        """Note the end of it, and end its forks, which the kernel kills with it."""
        status = self._process.wait()
        with suppress(OSError), self._own:  # a fork may be there that it has just told of
            self._own.settimeout(0)
            while self._take_message():
                pass
        for fork in self._forks.values():
            begun = fork.begun
            fork.kill()
            fork.end(-signal.SIGKILL if begun else status or -signal.SIGKILL)
        self._forks.clear()
