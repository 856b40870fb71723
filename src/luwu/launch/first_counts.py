"""Counts of a store at which a run began in it: a run counts its own steps from there."""

from __future__ import annotations

from pathlib import Path

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


def first_counts_of(folder: Path) -> Counts | None:
    """Return what `first_counts_in` does of the store that the run's settings name; None where that raises."""
    run = RunPaths(folder)
    try:
        stores = ((run.saved_settings() or {}).get("run") or {}).get("stores")
        return first_counts_in(run, Path(stores[0]) if stores else run.path / "store")
    except (LuwuError, OSError, ValueError, AttributeError, TypeError, LookupError):  # which the run's own start says
        return None
