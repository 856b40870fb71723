"""A standby or a server that does not run: it takes over, or is given up, by what its folder says."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from luwu.core.errors import ConfigError
from luwu.store.folders import no_store, read_identity
from luwu.store.opening import lock_folder
from luwu.store.standby_record import StandbyRecord, read_standby, write_standby


def take_over_at_rest(folder: Path) -> None:
    """Make a standby's store a server's: luwu server may be started with it.

    Args:
        folder: the store's first folder; a store that is striped over several is found by it.

    Raises:
        ConfigError: the store is no standby's, or may lack commits. StoreLockedError: its standby runs.
    """
    with closing(lock_folder(folder, "store")):
        record = _record_of(folder)
        if not record.follows or not record.in_sync:
            raise ConfigError(
                f"{folder}: expected the store of a standby that has every commit of its server, found "
                f"{'one that has not been brought in sync' if record.follows else 'one that is no standby'}"
            )
        write_standby(folder, replace(record, follows=False, in_sync=False, generation=record.generation + 1))


def release_at_rest(folder: Path, *, anyway: bool) -> str:
    """Give the standby of a server's store up, and return its URL.

    Raises:
        ConfigError: the store has no standby, or not ``anyway``: nobody can tell the standby. StoreLockedError: its
        server runs.
    """
    with closing(lock_folder(folder, "store")):
        record = _record_of(folder)
        if record.follows or not record.in_sync:
            raise ConfigError(f"{folder}: expected the store of a server with a standby, found one without")
        if not anyway:
            raise ConfigError(
                f"{folder}: expected --anyway, because the standby {record.other} cannot be told from here, and might "
                "take over; make sure that it has ended for good, or start the server and ask that"
            )
        write_standby(folder, StandbyRecord(generation=record.generation))
        return record.other


def _record_of(folder: Path) -> StandbyRecord:
    if read_identity(folder) is None:
        raise no_store([folder])
    return read_standby(folder)
