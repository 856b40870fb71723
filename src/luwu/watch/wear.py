"""Wear of the disks that a run's store is on: bytes that it has written, beside those that a disk may take. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from luwu.core.errors import ConfigError
from luwu.core.units import parse_endurance
from luwu.plan.wear import Wear
from luwu.watch.columns import number_of
from luwu.watch.state import Sample

WRITTEN = "luwu_store_written_bytes_total"
_STEP = "luwu_server_step"


class StepWrites(NamedTuple):
    """Bytes that a step writes to the whole store, and its time in seconds; means of some steps."""

    bytes: float
    seconds: float


class StoreFolder(NamedTuple):
    """A folder of a store. ``number`` tells its disk from others; ``disk`` is its name, empty where it has none."""

    path: str
    number: str
    disk: str


def writes_of_rows(rows: Iterable[Mapping[str, Any]]) -> StepWrites | None:
    """Return what the attempts of some rows of metrics.jsonl wrote in the mean; None: no row tells."""
    told = []
    for row in rows:
        server = row.get("server")
        written = number_of(server.get("written_bytes")) if isinstance(server, Mapping) else number_of(None)
        seconds = number_of(row.get("seconds"))
        if 0 <= written < math.inf and 0 < seconds < math.inf:
            told.append(StepWrites(written, seconds))
    return StepWrites(*(sum(values) / len(told) for values in zip(*told, strict=True))) if told else None


def writes_between(first: Sample | None, now: Sample) -> StepWrites | None:
    """Return what the steps between two samples of a server wrote in the mean; None: there was none between them."""
    if first is None:
        return None
    steps = now.figures.get(_STEP, 0.0) - first.figures.get(_STEP, 0.0)
    written = now.figures.get(WRITTEN, 0.0) - first.figures.get(WRITTEN, 0.0)
    if steps <= 0 or written < 0:
        return None
    return StepWrites(written / steps, (now.at - first.at) / steps)


def endurance_of(settings: Mapping[str, Any]) -> int | None:
    """Return the endurance that the settings of a run name, in bytes; None: they name none."""
    try:
        return parse_endurance(settings["run.endurance"])
    except (KeyError, ConfigError):
        return None


def wear_record(
    written: float, whose: str, step: StepWrites | None, folders: Sequence[StoreFolder], endurance: int | None
) -> dict[str, Any]:
    """Return the wear of each folder's disk, as JSON can hold it. A store has the same share in each of its folders.

    Args:
        written: bytes that were written to the store.
        whose: word for what wrote them, such as ``by this run``.
        step: what a step writes; None: unknown.
        folders: folders of the store; none: they are not known here.
        endurance: bytes that each disk may take by its data sheet; None: not given.
    """
    known, on = folders or [StoreFolder("", "", "")], Counter(folder.number for folder in folders)
    part = None if step is None else step._replace(bytes=step.bytes / len(known))
    given = endurance if folders else None
    stores = [_store_record(folder, written / len(known), part, given, max(1, on[folder.number])) for folder in known]
    return {"whose": whose, "endurance_bytes": given, "stores": stores}


def _store_record(
    folder: StoreFolder, written: float, step: StepWrites | None, endurance: int | None, on_disk: int
) -> dict[str, Any]:
    """Return what was written to a folder, and the wear of its disk, which has ``on_disk`` such folders."""
    wear = Wear(step.bytes * on_disk, step.seconds, endurance) if step else Wear(0.0, 1.0, endurance)
    return {
        "folder": folder.path,
        "disk": folder.disk,
        "written_bytes": written,
        "step_bytes": step.bytes if step else None,
        "endurance_share": wear.share(written * on_disk),
        "life_days": wear.life_days,
    }
