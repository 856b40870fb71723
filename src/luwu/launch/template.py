"""The template of the workers: a process that imports torch once, and that every worker is a fork of.

Importing torch takes seconds, in which the others wait for a worker that is started again. A fork takes milliseconds,
and shares the memory of what was imported. The launcher and the template talk over a socket that keeps messages whole,
in JSON. The launcher asks for a worker with ``{"number": n, "rank": r}`` and the descriptors of its log and of its
reports. The fork says that it is there with ``{"number": n}`` and a descriptor of its process, before it does anything
else. The template tells its end with ``{"number": n, "status": s}``.
"""

from __future__ import annotations

import errno
import gc
import itertools
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from luwu.core.room import Room, create
from luwu.launch.job import EXIT_FAILED
from luwu.launch.reports import REPORT_DESCRIPTOR
from luwu.launch.starting import die_with

TEMPLATE_DESCRIPTOR = "LUWU_TEMPLATE_DESCRIPTOR"
"""Environment variable of a template: its end of the socket to the launcher."""

_LONGEST_MESSAGE = 4096


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
            socket.send_fds(self._own, [_encode(number=number, rank=rank)], [output, reports])
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
        """Take the messages that are there; wait so long for the first, None: until there is one."""
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
            message, descriptors, _, _ = socket.recv_fds(self._own, _LONGEST_MESSAGE, 1)
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


def _encode(**message: int) -> bytes:
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
    try:
        prepare()
    except Exception as error:
        failure = error
    gc.freeze()  # what was imported stays, so no fork needs to look at it, and its pages stay shared
    if not _serve(launcher):
        return False
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if failure is not None:
        raise failure
    return True


def _serve(launcher: socket.socket) -> bool:
    """Fork a worker for each request, and return True in it; return False when the launcher has ended."""
    with launcher, selectors.DefaultSelector() as selector:
        selector.register(launcher, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not launcher:
                    _tell_end(launcher, selector, key)
                    continue
                message, descriptors, _, _ = socket.recv_fds(launcher, _LONGEST_MESSAGE, 2)
                if not message:
                    return False
                asked = json.loads(message)
                if _try_to_fork(launcher, selector, asked["number"], descriptors):
                    _take_place(asked["rank"], *descriptors)
                    return True
                for descriptor in descriptors:
                    os.close(descriptor)


def _try_to_fork(
    launcher: socket.socket, selector: selectors.BaseSelector, number: int, descriptors: list[int]
) -> bool:
    """Fork a process and return True in it. Where that fails, tell it to the launcher and in the worker's log."""
    try:
        if len(descriptors) != 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return _fork(launcher, selector, number)
    except OSError as error:  # too many processes or files
        with suppress(OSError):
            os.write(descriptors[0] if descriptors else 2, f"no process for a worker: {error}\n".encode())
        _tell(launcher, number=number, status=EXIT_FAILED)
        return False


def _fork(launcher: socket.socket, selector: selectors.BaseSelector, number: int) -> bool:
    template = os.getpid()
    with suppress(OSError):
        sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            _begin(launcher, selector, template, number)
        except BaseException:
            os._exit(EXIT_FAILED)  # it is no template, so it must not go on as one
        return True
    try:
        selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, number))
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return False


def _begin(launcher: socket.socket, selector: selectors.BaseSelector, template: int, number: int) -> None:
    """Say to the launcher that this fork is there, before it does anything else."""
    die_with(template)
    for key in selector.get_map().values():
        if key.fileobj is not launcher:
            os.close(key.fd)
    process = os.pidfd_open(os.getpid())
    socket.send_fds(launcher, [_encode(number=number)], [process])
    os.close(process)


def _take_place(rank: int, output: int, reports: int) -> None:
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.environ["RANK"] = str(rank)
    os.environ[REPORT_DESCRIPTOR] = str(reports)


def _tell_end(launcher: socket.socket, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    pid, number = key.data
    selector.unregister(key.fd)
    os.close(key.fd)
    _tell(launcher, number=number, status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _tell(launcher: socket.socket, **message: int) -> None:
    with suppress(OSError):  # the launcher has ended, which the next message tells
        launcher.send(_encode(**message))
