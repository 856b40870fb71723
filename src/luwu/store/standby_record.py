"""The record of a store's standby, or of the server that it is the standby of: standby.json in the first folder.

docs/standby.md describes what users see. The file decides who may train a store, so it is written before whatever
relies on it, durably.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path

from luwu.core.errors import ConfigError, StoreCorruptError, StoreFormatError
from luwu.core.json_fields import MALFORMED, explained, flag, read_object, read_text, whole, words
from luwu.store.folders import write_json
from luwu.store.parts import refused
from luwu.store.sealed_json import require_unchanged, sealed

STANDBY_NAME = "standby.json"
FORMAT = 1
MOST_GENERATIONS = 2**62


@dataclass(frozen=True)
class StandbyRecord:
    """The standby of a store, or the server that the store follows.

    Attributes:
        follows: the store is a standby's, and may not be trained.
        other: URL of the server that it follows, of its standby, or, where neither is so, of the server that it has
            taken over from; empty: there is none.
        in_sync: no commit of the server counts without the standby, so the standby may take over.
        generation: how often a standby has taken over, in the history of this store.
    """

    follows: bool = False
    other: str = ""
    in_sync: bool = False
    generation: int = 0

    def __str__(self) -> str:
        """Describe what the store is to another one; empty: nothing."""
        if self.follows:
            state = "with each of its commits" if self.in_sync else "not brought in sync"
            return f"this is the standby of {self.other}, {state}"
        if self.in_sync:
            return f"{self.other} has each commit; if it has taken over, that is where later steps are"
        return f"this has taken over from {self.other}" if self.other else ""


def read_standby(folder: Path) -> StandbyRecord:
    """Read the record of the store whose first folder this is; a store without a file has no standby and is none.

    Raises:
        StoreCorruptError, StoreFormatError: the file is damaged, or of a newer format.
        StorePermissionError, StoreError: the file cannot be read.
    """
    path = folder / STANDBY_NAME
    try:
        raw = read_object(read_text(path))
        version = whole(raw, "format", 0, MOST_GENERATIONS)
        if version <= FORMAT:
            require_unchanged(path, raw, ("format", *(each.name for each in fields(StandbyRecord))))
            return StandbyRecord(
                flag(raw["follows"], "follows"),
                words(raw["other"], "other"),
                flag(raw["in_sync"], "in_sync"),
                whole(raw, "generation", 0, MOST_GENERATIONS),
            )
    except FileNotFoundError:
        return StandbyRecord()
    except OSError as error:
        raise refused("read", path, error) from error
    except MALFORMED as error:
        raise StoreCorruptError(
            f"{path}: expected JSON that names a standby or its server, found {explained(error)}; see at the other of "
            "the two, with luwu status, which of them trains, and remove the file on that one"
        ) from error
    raise StoreFormatError(f"{path}: format {version}; this LuWu reads up to {FORMAT}: use the LuWu that wrote it")


def write_standby(folder: Path, record: StandbyRecord) -> None:
    """Replace the record; raises as `luwu.store.folders.write_json`."""
    write_json(folder / STANDBY_NAME, sealed({"format": FORMAT, **asdict(record)}))


def require_own(folder: Path, record: StandbyRecord) -> None:
    """Raise ConfigError where the store follows a server: that one trains it."""
    if record.follows:
        choice = f", or have it take over with luwu standby take-over {folder}" if record.in_sync else ""
        raise ConfigError(
            f"the store {folder} is the standby of {record.other}, which trains it: start it with luwu server "
            f"--standby-of {record.other}{choice}"
        )


def require_alone(folder: Path) -> None:
    """Raise ConfigError where a store must not be trained without a network: it has a standby, or is one."""
    record = read_standby(folder)
    require_own(folder, record)
    if record.in_sync:
        raise ConfigError(
            f"the store {folder} has a standby, {record.other}, which has each of its commits: train it with luwu "
            f"server, or give the standby up with luwu standby release {folder}"
        )
