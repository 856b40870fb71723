"""The run that trains on a store: run.json in the first folder, written when a run begins, compared when it resumes.

A run is known by its id, wherever its folder lies. docs/checkpoints.md describes what users see.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from luwu.core.aggregation import AGGREGATE
from luwu.core.errors import ConfigError, StoreCorruptError, StoreFormatError
from luwu.core.json_fields import MALFORMED, explained, read_object, read_text, table, whole, words
from luwu.core.words import counted
from luwu.store.folders import remove_file, write_json
from luwu.store.parts import refused
from luwu.store.sealed_json import require_unchanged, sealed

RUN_NAME = "run.json"
FORMAT = 1

MOST_COUNT = 2**62
"""Bound of a count in a record that is read."""

DIFFERENCES_SHOWN = 4


@dataclass(frozen=True)
class Counts:
    """A store's counts: committed steps, steps tried, and steps rolled back."""

    step: int = 0
    attempts: int = 0
    rolled_back: int = 0

    @staticmethod
    def of(stats: Mapping[str, Any]) -> Counts:
        """Take the counts from a server's stats."""
        return Counts(int(stats["step"]), int(stats["attempts"]), int(stats["rolled_back"]))


@dataclass(frozen=True)
class RunRecord:
    """A run and the store it trains on.

    Attributes:
        id: the run's id, which stays when its folder moves.
        folder, host: where the run's folder was when it last began.
        settings: the settings that a run must keep, by name, such as ``model.layers``.
        data: values that tell the prepared text from other texts; see `same_data`.
        first: the store's counts when the run began on it; the run counts from there.
    """

    id: str
    folder: str
    host: str = field(default_factory=socket.gethostname)
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    first: Counts = Counts()


@dataclass(frozen=True)
class Claim:
    """A run that asks for a store.

    Attributes:
        run: the run; its `RunRecord.first` is not used.
        takes_weights: the run is to be a new one that goes on from another run's weights.
        begun: the run has begun before, on this store or another.
        steps_made: steps that the run has made before; a store without any is not the run's own.
    """

    run: RunRecord
    takes_weights: bool = False
    begun: bool = False
    steps_made: int = 0

    def to_json(self) -> str:
        """Return the claim as text for a server elsewhere."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Claim:
        """Read a claim that `to_json` wrote; raises ConfigError."""
        try:
            raw = read_object(text)
            return Claim(
                _record_of(table(raw["run"], "run")),
                bool(raw["takes_weights"]),
                bool(raw["begun"]),
                whole(raw, "steps_made", 0, MOST_COUNT),
            )
        except MALFORMED as error:
            raise ConfigError(
                f"run: expected a run's claim, found {explained(error)}; install one version of luwu"
            ) from None


def read_record(folder: Path) -> RunRecord | None:
    """Return the run of the store whose first folder this is; None if no run has begun there.

    Raises:
        StoreCorruptError, StoreFormatError: the file is damaged, or of a newer format.
        StorePermissionError, StoreError: the file cannot be read.
    """
    path = folder / RUN_NAME
    try:
        raw = read_object(read_text(path))
        version = whole(raw, "format", 0, MOST_COUNT)
        if version <= FORMAT:
            require_unchanged(path, raw, ("format", *(each.name for each in fields(RunRecord))))
            return _record_of(raw)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refused("read", path, error) from error
    except MALFORMED as error:
        raise StoreCorruptError(
            f"{path}: expected JSON that names the store's run, found {explained(error)}; put the file "
            "back from snapshots/STEP or a copy, or remove it, and the next luwu train goes on with the store"
        ) from error
    raise StoreFormatError(f"{path}: format {version}; this LuWu reads up to {FORMAT}: use the LuWu that wrote it")


def check_claim(folder: Path, claim: Claim) -> None:
    """Check, before anything is started, that a run may train on a store; raises ConfigError as `claim_store`."""
    record = read_record(folder)
    if record is not None and record.id != claim.run.id:
        _check_other(folder, record, claim)


def claim_store(folder: Path, claim: Claim, counts: Counts, *, imported: bool) -> tuple[Counts, str]:
    """Give a run a store that is open and locked; return the counts at which the run began, and a message or "".

    Args:
        folder: the store's first folder.
        claim: the run's claim.
        counts: the store's present counts; a store without an attempt has no history.
        imported: the values came from a checkpoint.

    Raises:
        ConfigError: the store is another run's or has no steps although the run has made some, the run's data or
            settings have changed, or the store stands before the run began.
    """
    record = read_record(folder)
    if record is None:
        return _take_unclaimed(folder, claim, counts, imported=imported)
    if record.id == claim.run.id:
        _check_same(folder, record, claim, counts)
        now = replace(claim.run, first=record.first)
        if now != record:  # the folder has moved
            _write(folder, now)
        return record.first, ""
    _check_other(folder, record, claim)
    _write(folder, replace(claim.run, first=counts))
    return counts, (
        f"a new run, whose steps count from 0, goes on from the weights in {folder}, which {_named(record)} trained "
        f"to step {counts.step}"
    )


def restore_record(snapshot: Path, folder: Path, step: int) -> None:
    """Give a store that was restored to a snapshot of `step` back to the run that had the store then.

    Raises:
        StoreSpaceError, StorePermissionError, StoreError: the file cannot be written.
    """
    then, now = read_record(snapshot), read_record(folder)
    if then is not None and then != now:
        _write(folder, then)
    elif then is None and now is not None and step < now.first.step:
        remove_file(folder / RUN_NAME)  # the snapshot has no record of its run: the next run takes the store


def same_data(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two runs have the same text; only values that both of them know are compared."""
    known = [name for name in one if name != "name" and one[name] is not None and other.get(name) is not None]
    return all(one[name] == other[name] for name in known)


def differences(one: RunRecord, other: RunRecord) -> list[str]:
    """List the settings that differ, each with both values; the store's folders are not compared."""
    names = [name for name in one.settings if name != "run.stores" and name in other.settings]
    return [
        f"{name} ({_shown(one.settings[name])} there, {_shown(other.settings[name])} here)"
        for name in names
        if one.settings[name] != other.settings[name]
    ]


def missing_store(run: str, steps: int, where: str) -> ConfigError:
    """Return the error for a run whose store is not where it should be."""
    return ConfigError(
        f"the run {run} has made {counted(steps, 'step')}, and its store is not in {where}: mount the disk or restore "
        "the folder, or start another run with --run and --store; to begin this run again, remove its metrics.jsonl"
    )


def _take_unclaimed(folder: Path, claim: Claim, counts: Counts, *, imported: bool) -> tuple[Counts, str]:
    if claim.steps_made and counts.attempts == 0:
        raise missing_store(claim.run.folder, claim.steps_made, str(folder))
    first = counts if claim.takes_weights else Counts()
    _write(folder, replace(claim.run, first=first))
    if claim.takes_weights or imported or counts.attempts == 0:
        return first, ""
    return first, (
        f"the store {folder} does not say which run has trained it (an earlier version of LuWu, or a script): this run "
        f"goes on with it at step {counts.step}"
    )


def _check_same(folder: Path, record: RunRecord, claim: Claim, counts: Counts) -> None:
    if not same_data(record.data, claim.run.data):
        raise ConfigError(
            f"data: expected the text that {_named(record)} was started with, found another since then; give the first "
            "one back, or start another run with --run and --store"
        )
    changed = differences(record, claim.run)
    if changed and counts.attempts > record.first.attempts:
        name = changed[0].partition(" ")[0]
        average = json.dumps(record.settings.get(AGGREGATE))
        starts = f" (start luwu server, or luwu train without --server, with --aggregate {average})"
        where = starts if name == AGGREGATE else ""
        raise ConfigError(
            f"{name}: {_named(record)} was started with other settings: {_some(changed)}; give "
            f"the first ones back{where}, or start another run with --run and --store"
        )
    if counts.step < record.first.step:
        raise ConfigError(
            f"the store {folder} stands at step {counts.step}, before this run began in it at step "
            f"{record.first.step}; restore a later snapshot (luwu snapshot list)"
        )


def _check_other(folder: Path, record: RunRecord, claim: Claim) -> None:
    """Refuse another run's store, unless this run is new and is to take its weights."""
    if claim.takes_weights and not claim.begun:
        return
    if claim.takes_weights:
        raise ConfigError(
            f"--new-run: expected a run folder that is new, found {claim.run.folder}, whose run has begun; the store "
            f"{folder} belongs to {_named(record)}; name another folder with --run"
        )
    found = differences(record, claim.run)
    differ = f"; they differ in {_some(found)}" if found else ""
    where = "" if record.host == socket.gethostname() else f", on {record.host}"
    choices = {
        "--new-run": "go on from the weights in it as a new run, whose steps count from 0",
        f"--run {record.folder}": f"resume the run that it belongs to{where}; "
        "without --data, nor other settings that differ",
        "--store FOLDER": "start afresh in another folder, and name another with --run if this run has begun; "
        "of a server elsewhere: luwu server --store FOLDER",
    }
    width = max(map(len, choices))
    ways = "".join(f"\n  {flag:{width}}  {meaning}" for flag, meaning in choices.items())
    raise ConfigError(
        f"the store {folder} belongs to {_named(record)}, and this is the run {claim.run.folder}{differ}; choose one:"
        f"{ways}"
    )


def _named(record: RunRecord) -> str:
    text = record.data.get("name")
    return f"the run {record.folder}" + (f" (data {text})" if text else "")


def _some(differences: list[str]) -> str:
    more = f", and {len(differences) - DIFFERENCES_SHOWN} more" if len(differences) > DIFFERENCES_SHOWN else ""
    return ", ".join(differences[:DIFFERENCES_SHOWN]) + more


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def _record_of(raw: Mapping[str, Any]) -> RunRecord:
    return RunRecord(
        id=words(raw["id"], "id"),
        folder=words(raw["folder"], "folder"),
        host=words(raw["host"], "host"),
        settings=table(raw["settings"], "settings"),
        data=table(raw["data"], "data"),
        first=Counts(
            **{each.name: whole(table(raw["first"], "first"), each.name, 0, MOST_COUNT) for each in fields(Counts)}
        ),
    )


def _write(folder: Path, record: RunRecord) -> None:
    """Replace the file, so that snapshots and copies made with hard links keep the old one."""
    write_json(folder / RUN_NAME, sealed({"format": FORMAT, **asdict(record)}))
