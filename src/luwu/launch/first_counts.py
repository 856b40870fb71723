"""Counts of a store at which a run began in it: a run counts its own steps from there."""

from __future__ import annotations

from pathlib import Path

from luwu.control.address import SCHEME
from luwu.core.errors import LuwuError
from luwu.launch.run_paths import RunPaths
from luwu.store.run_record import Counts, read_record


def first_counts_in(run: RunPaths, store: Path) -> Counts | None:
    """Return the store's counts at which a run began in it; None where the store does not say, or is elsewhere.

    Args:
        run: the run's folder.
        store: first folder of its store.

    Raises:
        LuwuError, OSError, ValueError: it is not a run of `luwu train`, or a file is damaged.
    """
    run_id, record = run.id_path.read_text(encoding="utf-8").strip(), read_record(store)
    return record.first if record is not None and record.id == run_id else None


def first_counts_of(where: str) -> Counts | None:
    """Return what `first_counts_in` does of the store that a run's settings name; None for a URL, and where it raises.

    Args:
        where: luwu://HOST:PORT, or a run folder of this machine, as commands take them.
    """
    if where.startswith(SCHEME):
        return None
    try:
        run = RunPaths(Path(where))
        return first_counts_in(run, run.stores_in(run.saved_settings() or {})[0])
    except (LuwuError, OSError, ValueError):  # which the run's own start says
        return None
