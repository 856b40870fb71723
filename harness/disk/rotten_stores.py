"""Stores whose files can be damaged in place and put back, with what they were at earlier moments."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest import mock

import luwu
from harness.disk import operations
from harness.disk.image import Image
from harness.disk.looking import WRITING, Seen, Store, Way, look, records_of
from harness.disk.operations import EIGHT_BITS, Numbers, import_numbers, model_manifest, stores_of, train
from luwu.store import snapshots
from luwu.store.folders import UNFINISHED_IMPORT_NAME, read_identity
from luwu.store.run_record import Claim, Counts, RunRecord, claim_store
from luwu.store.snapshots import snapshot_folders, snapshot_steps
from luwu.store.upkeep import StoreInfo

Contents = dict[str, bytes]
"""The bytes of files by their paths within a folder."""

LOCKS = frozenset({"lock", "luwu.lock"})


@dataclass
class Subject:
    """A store to be damaged.

    Attributes:
        top: everything lies in it.
        store: how it is opened.
        earlier: files at earlier moments.
        intact: what each way shows of it.
        allowed: what each way may show instead, if it says that something is damaged: the step before, or no origin.
    """

    name: str
    top: Path
    store: Store
    earlier: list[Contents]
    intact: dict[str, Seen]
    allowed: dict[str, list[object]]

    def __post_init__(self) -> None:
        self._image = Image.read(self.top)
        self.now = contents_of(self.top)
        self._inodes = inodes_of(self.top)
        links: dict[int, list[str]] = {}
        for path, number in self._image.walk():
            links.setdefault(number, []).append(path)
        self.names = {path: same for same in links.values() for path in same}
        """All names of the file that has this one."""
        self.ways = {name: way for name, way in self.store.ways().items() if name in self.intact}
        folders = self.store.folders
        self.quick_ways = {
            name: _records_alone(inside)
            for name, inside in {
                "chunks": folders,
                **{f"snapshot {step}": snapshot_folders(folders, step) for step in snapshot_steps(folders)},
            }.items()
        }
        """Ways that read records and chunks; the manifest is known beforehand."""

    def put_back(self) -> None:
        """Make all files what they were."""
        inodes = inodes_of(self.top)
        if inodes == self._inodes:
            for path, content in self.now.items():
                if (self.top / path).read_bytes() != content:
                    (self.top / path).write_bytes(content)
            return
        replace_by(self.top, self._image)
        self._inodes = inodes_of(self.top)


def _records_alone(folders: list[Path]) -> Way:
    identity = read_identity(folders[0])
    assert identity is not None

    def read() -> tuple[object, list[str]]:
        shown, findings = records_of(folders, identity)
        return (identity, shown), findings

    return read


def replace_by(top: Path, image: Image) -> None:
    """Write an image in place of all that lies in a folder."""
    for entry in top.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    image.write(top)


def inodes_of(top: Path) -> dict[str, int]:
    """Return the numbers of all files and folders in a folder."""
    return {str(path): path.stat().st_ino for path in top.rglob("*")}


def contents_of(top: Path) -> Contents:
    """Read all files in a folder but for locks, which say nothing about a store."""
    paths = (path for path in sorted(top.rglob("*")) if path.is_file() and path.name not in LOCKS)
    return {str(path.relative_to(top)): path.read_bytes() for path in paths}


def trained(top: Path) -> Subject:
    """Make a store of two stripes that a run has trained to step 4, with a snapshot of step 2 and frozen blocks."""
    claim = _claim(top, folder="/runs/first", counts=Counts(), train_to=1)
    earlier = [contents_of(top)]
    train(top, 2)
    snapshots.take(stores_of(top))
    claim = _claim(top, folder="/runs/moved/elsewhere", counts=Counts(2, 2, 0), train_to=3)
    return _subject("trained", top, Store(stores_of(top), model_manifest(), claim), earlier, partial(train, top, 4))


def eight_bit(top: Path) -> Subject:
    """Make a store whose states have eight bits."""
    train(top, 1, **EIGHT_BITS)
    earlier = [contents_of(top)]
    train(top, 2, **EIGHT_BITS)
    store = Store(stores_of(top), model_manifest(luwu.AdamW8bit.kind))
    return _subject("eight-bit", top, store, earlier, partial(train, top, 3, **EIGHT_BITS))


def imported(top: Path) -> Subject:
    """Make a store that was imported at step 7 and trained on."""
    operations.checkpoint(top)
    (top / "model" / "config.json").write_text('{"architectures": ["Tiny"]}')
    import_numbers(top, model_manifest())
    earlier = [contents_of(top)]
    train(top, 8)
    store = Store(stores_of(top), model_manifest(), import_again=partial(import_numbers, top, model_manifest()))
    return _subject("imported", top, store, earlier, partial(train, top, 9))


class _KilledError(Exception):
    pass


def unfinished(top: Path) -> Subject:
    """Make a store whose import was killed when two chunks were durable; it is looked at by giving it again."""
    operations.checkpoint(top)
    again = partial(import_numbers, top, model_manifest())
    earlier: list[Contents] = []
    read, calls = Numbers.read, 0

    def killing(self: Numbers, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if (stores_of(top)[0] / UNFINISHED_IMPORT_NAME).exists():
            earlier.append(contents_of(top))
        if b'"chunks": 2' in (stores_of(top)[0] / UNFINISHED_IMPORT_NAME).read_bytes():
            raise _KilledError
        return read(self, *arguments)  # type: ignore[arg-type]

    with mock.patch.object(Numbers, "read", killing), suppress(_KilledError):
        again()
    store = Store(stores_of(top), model_manifest(), import_again=again)
    image = Image.read(top)
    intact = {"import again": look(store.ways()["import again"])}
    replace_by(top, image)
    return Subject("unfinished import", top, store, earlier[:1], intact, {"import again": []})


def _claim(top: Path, *, folder: str, counts: Counts, train_to: int) -> Claim:
    """Give the store to a run whose folder is now this one, and train; the run's id stays."""
    record = RunRecord(
        "run-1", folder, "host", {"model.layers": 2, "optimizer.lr": 0.01}, {"name": "text", "checksum": 7}
    )
    claim = Claim(record, begun=counts.step > 0, steps_made=counts.step)
    if counts.step == 0:
        train(top, 0)
    claim_store(stores_of(top)[0], claim, counts, imported=False)
    train(top, train_to)
    return claim


def _subject(name: str, top: Path, store: Store, earlier: list[Contents], last_step: Callable[[], None]) -> Subject:
    """Look at the store before its last step and after it."""
    before = intact_of(store)
    earlier = [*earlier, contents_of(top)]
    last_step()
    intact = intact_of(store)
    allowed = {way: [before[way].shown] for way in intact}
    shown = intact["info"].shown
    assert isinstance(shown, StoreInfo)
    allowed["info"].append(replace(shown, origin=(), model=()))
    return Subject(name, top, store, earlier, intact, allowed)


def intact_of(store: Store) -> dict[str, Seen]:
    """Look in all ways; afterwards the store is what an opening leaves. Raises AssertionError if it is not whole."""
    for way, look_so in store.ways().items():
        if way in WRITING:
            look(look_so)
    intact = {way: look(look_so) for way, look_so in store.ways().items()}
    for way, seen in intact.items():
        if seen.shown is None or seen.said:
            raise AssertionError(f"{way}: {seen}")
    return intact
