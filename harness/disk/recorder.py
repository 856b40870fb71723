"""Notes every call of this process that changes a folder; the process was started with `environment()`.

The library in front of the C library is harness/disk/native, which writes the log that `read_log` reads.
"""

from __future__ import annotations

import ctypes
import enum
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "build/native/harness/disk/native/libluwu_disk.so"


class Kind(enum.IntEnum):
    """The effect of a call on the disk, numbered as recorder.h has it."""

    OPEN = 0
    CLOSE = 1
    WRITE = 2
    SYNC = 3
    TRUNCATE = 4
    ALLOCATE = 5
    PUNCH = 6
    RENAME = 7
    LINK = 8
    UNLINK = 9
    MAKE_FOLDER = 10
    MARK = 11
    LOOK = 12


class Fault(enum.IntEnum):
    """Failure of a chosen call. CUT: half of the bytes are transferred."""

    NONE = 0
    KILL = 1
    IO_ERROR = 2
    NO_SPACE = 3
    CUT = 4


@dataclass(frozen=True)
class Call:
    """A call, from its begin to its end on one clock that counts.

    Attributes:
        result: the call's result; of OPEN the descriptor.
        handle: number of the open file; each opening has its own.
        offset: in bytes; of OPEN the flags.
        length: in bytes; of TRUNCATE the file's new length.
        name: the function, or the text of a mark.
        path, other: absolute; OTHER is the new name of RENAME and LINK.
        site: of SYNC the place in the program.
        key: tells the call from all others, the same in every run.
        data: bytes that WRITE wrote.
    """

    kind: Kind
    begin: int
    end: int
    result: int
    handle: int
    offset: int
    length: int
    name: str
    path: str
    other: str
    site: str
    key: str
    data: bytes


_NUMBERS = struct.Struct("<7q")
_LENGTH = struct.Struct("<Q")


def read_log(path: Path) -> list[Call]:
    """Read a log in the order in which the calls ended."""
    return sorted(_entries(memoryview(path.read_bytes())), key=lambda call: call.end)


def _entries(log: memoryview) -> Iterator[Call]:
    at = 0

    def part() -> bytes:
        nonlocal at
        (length,) = _LENGTH.unpack_from(log, at)
        at += _LENGTH.size + length
        return bytes(log[at - length : at])

    while at < len(log):
        kind, begin, end, result, handle, offset, length = _NUMBERS.unpack_from(log, at)
        at += _NUMBERS.size
        name, path, other, site, key = (part().decode() for _ in range(5))
        yield Call(Kind(kind), begin, end, result, handle, offset, length, name, path, other, site, key, part())


def environment() -> dict[str, str]:
    """Return the variables that a process needs to record itself."""
    return {**os.environ, "LD_PRELOAD": str(LIBRARY), "OMP_NUM_THREADS": "1"}


def _library() -> Any:
    return ctypes.CDLL(None)  # the preloaded functions


@contextmanager
def recording(folder: Path, log: Path, *, calls_too: bool = False) -> Iterator[None]:
    """Note in a file what this process does to a folder; with `calls_too` also the calls that change nothing."""
    library = _library()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC)
    library.luwu_disk_start(os.fsencode(folder), file, int(calls_too))
    try:
        with _labelled_syncs():
            yield
    finally:
        library.luwu_disk_stop()
        os.close(file)


def mark(text: str) -> None:
    """Note a text among the calls; nothing happens in a process without the recorder."""
    if hasattr(_library(), "luwu_disk_mark"):
        _library().luwu_disk_mark(text.encode())


def fail(key: str, fault: Fault) -> None:
    """Let the call with this key fail once."""
    _library().luwu_disk_fail(key.encode(), int(fault))


def fault_met() -> bool:
    """Return true when the chosen call came and failed."""
    return bool(_library().luwu_disk_met())


@contextmanager
def _labelled_syncs() -> Iterator[None]:
    """Say of each sync that Python calls which functions called it."""
    library, real = _library(), (os.fsync, os.fdatasync)

    def labelled(sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def call(file: Any) -> None:
            library.luwu_disk_label(_callers().encode())
            sync(file)
            library.luwu_disk_label(b"")  # of a file elsewhere: nobody took it

        return call

    os.fsync, os.fdatasync = (labelled(sync) for sync in real)
    try:
        yield
    finally:
        os.fsync, os.fdatasync = real


def _callers() -> str:
    """Functions of LuWu on the stack, innermost first, as `module.function:line`."""
    found = []
    frame = sys._getframe(2)
    while frame is not None and len(found) < 4:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("luwu."):
            found.append(f"{module.removeprefix('luwu.')}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found)


def refuse_io_uring() -> None:
    """Let this process take threads for its disk access: what io_uring does passes by the recorder."""
    filters = _io_uring_filter()
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, filter_mode = 38, 22, 2
    for arguments in ((no_new_privileges, 1, 0, 0, 0), (seccomp, filter_mode, ctypes.byref(filters), 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "cannot refuse io_uring to this process")


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def _io_uring_filter() -> _Program:
    """A seccomp program: io_uring_setup fails with ENOSYS, everything else is allowed."""
    io_uring_setup, error, allow = 425, 0x00050000 | 38, 0x7FFF0000
    instructions = (_Instruction * 4)(
        _Instruction(0x20, 0, 0, 0),  # load the call's number
        _Instruction(0x15, 0, 1, io_uring_setup),  # is it this one?
        _Instruction(0x06, 0, 0, error),
        _Instruction(0x06, 0, 0, allow),
    )
    program = _Program(len(instructions), instructions)
    program.kept = instructions  # type: ignore[attr-defined] # as long as the program that points to it
    return program
