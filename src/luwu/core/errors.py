"""Every error that LuWu raises on purpose; each message names the thing, expected, found, and what to do."""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AttemptVoidError",
    "AuthenticationError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "ForkedError",
    "LuwuError",
    "ManifestMismatchError",
    "MemoryBudgetError",
    "NonFiniteError",
    "NotUnderWayError",
    "ServerError",
    "StepOrderError",
    "StoreCorruptError",
    "StoreEmptyError",
    "StoreError",
    "StoreFormatError",
    "StoreLockedError",
    "StorePermissionError",
    "StoreSpaceError",
    "WorkerLostError",
    "error_named",
]


class LuwuError(Exception):
    """Raised for whatever no other class names; the base of all errors: catch it to catch anything LuWu reports.

    Attributes:
        code: stable name of the class: `luwu help CODE` prints its page, of `luwu.core.error_pages`.
    """

    code: ClassVar[str] = "LUWU-100"


class ConfigError(LuwuError, ValueError):
    """Raised when a setting or an argument cannot work, alone or with the others; nothing has been written."""

    code = "LUWU-101"


class NotUnderWayError(ConfigError):
    """Raised when a folder is asked in which no run is under way: what it holds is all that there is of one."""

    code = "LUWU-107"


class CheckpointError(LuwuError):
    """Raised when a checkpoint's file is missing, damaged or of another model; names the file or the tensor."""

    code = "LUWU-103"


class ManifestMismatchError(LuwuError):
    """Raised when a store was made for another model; the message names the first parameter that differs."""

    code = "LUWU-104"


class StoreCorruptError(LuwuError):
    """Raised when a store's file is truncated or its checksum is wrong; the message names the file and the offset."""

    code = "LUWU-202"


class StoreEmptyError(LuwuError):
    """Raised when a store's values are asked for before it has any: nothing was trained or imported into it yet."""

    code = "LUWU-203"


class StoreError(LuwuError):
    """Raised when the system refuses to read, write or sync a store's file; the last committed step is kept."""

    code = "LUWU-201"


class StoreLockedError(LuwuError):
    """Raised when another process has the store open."""

    code = "LUWU-205"


class StoreFormatError(LuwuError):
    """Raised when a file is not a store, or has a format version that this version of LuWu cannot read."""

    code = "LUWU-204"


class StoreSpaceError(LuwuError):
    """Raised when the disk has too little room, at creation or during a run; the last committed step is kept."""

    code = "LUWU-207"


class StorePermissionError(LuwuError):
    """Raised when a store's folder or file cannot be read or written by this user."""

    code = "LUWU-206"


class MemoryBudgetError(LuwuError):
    """Raised when the memory budget is below what the model needs; the message says the minimum."""

    code = "LUWU-105"


class ServerError(LuwuError):
    """Raised when the server stopped; every waiting worker gets it, with the server's own message."""

    code = "LUWU-301"


class AuthenticationError(LuwuError):
    """Raised when the job key or the TLS certificates of the two sides do not fit together."""

    code = "LUWU-106"


class WorkerLostError(LuwuError):
    """Raised when a worker of the run, or a switch between, died; the run ends at the last committed step."""

    code = "LUWU-302"


class AttemptVoidError(LuwuError):
    """Raised by ``optim.step()`` when a worker was lost in the attempt: all run the same batch again, and go on."""

    code = "LUWU-303"


class NonFiniteError(LuwuError):
    """Raised when too many steps in a row had gradients that were not finite and were rolled back."""

    code = "LUWU-401"


class DataError(LuwuError):
    """Raised when training data cannot be read, is empty, or is too short for one sequence."""

    code = "LUWU-102"


class DeviceError(LuwuError):
    """Raised when a GPU or its driver is missing, refuses memory or a copy, or failed; names the driver's reason."""

    code = "LUWU-501"


class ForkedError(LuwuError):
    """Raised when a process uses a session of the process that it was forked from; open another session there."""

    code = "LUWU-403"


class StepOrderError(LuwuError):
    """Raised when forward, backward and ``optim.step()`` are called in an order that one step cannot be made of."""

    code = "LUWU-402"


def error_named(name: str, otherwise: type[LuwuError] = LuwuError) -> type[LuwuError]:
    """The class above of this name, as another process sent it; ``otherwise`` for a name that is none of them."""
    kind = globals().get(name)
    return kind if isinstance(kind, type) and issubclass(kind, LuwuError) else otherwise


for _name in __all__:  # a traceback names the place that programs import them from
    globals()[_name].__module__ = "luwu.errors"
