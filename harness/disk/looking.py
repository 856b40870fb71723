"""Looks at a store in every way in which somebody reads it, and tells what each of them shows and says."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from harness.disk.observing import MEMORY_BYTES
from luwu.core.manifest import Manifest
from luwu.errors import LuwuError, StoreEmptyError
from luwu.server.folders import open_server
from luwu.store import upkeep
from luwu.store.folders import StoreIdentity, read_identity
from luwu.store.model_files import kept_model_folder
from luwu.store.opening import reader_of
from luwu.store.origin import require_model_files
from luwu.store.run_record import Claim, check_claim
from luwu.store.snapshots import snapshot_folders, snapshot_steps
from luwu.store.values import StoredValues
from luwu.store.verifying import verify

WRITING = frozenset({"serve", "import again"})
"""Ways that write to the store that they look at."""


@dataclass(frozen=True)
class Seen:
    """A store as one way of reading shows it.

    Attributes:
        shown: anything that can be compared; None where the store was refused.
        said: the error, or all warnings and findings.
        typed: the error has one of LuWu's types; true where there is none.
        empty: the store counts as one without values.
    """

    shown: object = None
    said: str = ""
    typed: bool = True
    empty: bool = False


Way = Callable[[], tuple[object, list[str]]]
"""Returns what is shown, and the damage that is said beside the log."""


@dataclass(frozen=True)
class Store:
    """A store that is looked at: its folders, the model that trains on it, and its run, if it has one."""

    folders: list[Path]
    manifest: Manifest
    claim: Claim | None = None
    import_again: Callable[[], object] | None = None

    def ways(self) -> dict[str, Way]:
        """Return all ways to look at it, by name; those that write come last."""
        ways: dict[str, Way] = {
            "chunks": partial(_chunks, self.folders),
            "export": partial(_export, self.folders),
            "info": partial(_info, self.folders),
            "verify": partial(_verify, self.folders),
        }
        for step in snapshot_steps(self.folders):
            inside = snapshot_folders(self.folders, step)
            ways[f"snapshot {step}"] = partial(_chunks, inside)
            ways[f"verify snapshot {step}"] = partial(_verify, inside)
        if self.claim is not None:
            ways["claim"] = partial(_claim, self.folders, self.claim)
        ways["serve"] = partial(_serve, self.folders, self.manifest)
        if self.import_again is not None:
            ways["model"] = partial(_model, self.folders)
            ways["import again"] = partial(_import, self.folders, self.import_again)
        return ways


def look(way: Way) -> Seen:
    """Look at a store in one way."""
    with _listening() as log:
        try:
            shown, findings = way()
        except StoreEmptyError as error:
            return Seen(said=str(error), empty=True)
        except LuwuError as error:
            return Seen(said=str(error))
        except Exception as error:  # whatever it is, it is no answer
            return Seen(said=repr(error), typed=False)
    return Seen(shown, "\n".join([*log, *findings]))


class _Notes(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Collect what LuWu says in its log, and keep it from everybody else."""
    logger, notes = logging.getLogger("luwu"), _Notes()
    passes_on = logger.propagate
    logger.addHandler(notes)
    logger.propagate = False
    try:
        yield notes.texts
    finally:
        logger.propagate = passes_on
        logger.removeHandler(notes)


def records_of(folders: list[Path], identity: StoreIdentity) -> tuple[object, list[str]]:
    """Read the commit records and all chunks of a store whose manifest is known."""
    reader = reader_of(folders, identity)
    digest = hashlib.blake2b(digest_size=16)
    for block in range(len(identity.manifest.blocks)):
        for chunk in range(len(reader.chunks(block))):
            parameters, states = reader.read_chunk(block, chunk, True)
            for array in (parameters, *states):
                digest.update(np.ascontiguousarray(array).data)
    counts = tuple(reader.counts), int(reader.attempts), int(reader.rolled_back), reader.loss_scale
    return (int(reader.step), *counts, digest.hexdigest()), list(reader.findings)


def _chunks(folders: list[Path]) -> tuple[object, list[str]]:
    identity = read_identity(folders[0])
    assert identity is not None, "no manifest"
    shown, findings = records_of(folders, identity)
    return (identity, shown), findings


def _export(folders: list[Path]) -> tuple[object, list[str]]:
    digest = hashlib.blake2b(digest_size=16)
    names = []
    with StoredValues(folders) as values:
        for place in values.places():
            names.append(place)
            for _, piece in values.pieces(place, 2**20, states=True):
                for tensor in (piece.parameters, *piece.moments):
                    digest.update(tensor.numpy().data)
        return (values.step, tuple(values.counts), tuple(names), digest.hexdigest()), []


def _info(folders: list[Path]) -> tuple[object, list[str]]:
    found = upkeep.info(folders)
    if found.step is None:
        raise StoreEmptyError("info says that there are no values")
    return replace(found, folders=(), findings=()), list(found.findings)


def _verify(folders: list[Path]) -> tuple[object, list[str]]:
    report = verify(folders)
    return (report.step, report.chunks, report.nbytes), [*report.findings, report.first_damage]


def _claim(folders: list[Path], claim: Claim) -> tuple[object, list[str]]:
    check_claim(folders[0], claim)
    return "", []


def _model(folders: list[Path]) -> tuple[object, list[str]]:
    require_model_files(folders[0])
    kept = kept_model_folder(folders[0])
    assert kept is not None, "no configuration"
    return tuple((path.name, path.read_bytes()) for path in sorted(kept.iterdir())), []


def _serve(folders: list[Path], manifest: Manifest) -> tuple[object, list[str]]:
    """Open the store for training, which mends its records, and read what it is then."""
    open_server(folders, manifest, MEMORY_BYTES, 1, 1).close()
    shown, findings = _chunks(folders)
    assert not findings, f"not mended: {findings}"
    return shown, []


def _import(folders: list[Path], again: Callable[[], object]) -> tuple[object, list[str]]:
    """Give an import again; the store may have another uuid than before."""
    again()
    return _export(folders)
