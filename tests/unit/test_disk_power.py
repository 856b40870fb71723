"""The model of a power cut (harness/disk/power.py): which disks may be left of a few calls."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field

from harness.disk.image import TOP, Image
from harness.disk.power import SECTOR, History, Moment, State
from harness.disk.recorder import Call, Kind

ROOT = "/store"
Disk = dict[str, bytes]


@dataclass
class Program:
    """Writes down the calls of a program, as the recorder does."""

    calls: list[Call] = field(default_factory=list)
    handles: int = 0

    def call(self, kind: Kind, path: str, **values: object) -> None:
        at = 10 * (1 + len(self.calls))
        known = {"result": 0, "handle": self.handles, "offset": 0, "length": 0, "other": "", "data": b"", **values}
        self.calls.append(
            Call(kind, at, at + 5, name=kind.name.lower(), path=f"{ROOT}/{path}".rstrip("/"), site="", key="", **known)  # type: ignore[arg-type]
        )

    def open(self, path: str, flags: int = os.O_CREAT) -> None:
        self.handles += 1
        self.call(Kind.OPEN, path, offset=flags)

    def write(self, path: str, data: bytes, offset: int = 0) -> None:
        self.call(Kind.WRITE, path, data=data, length=len(data), offset=offset)

    def sync(self, path: str) -> None:
        self.call(Kind.SYNC, path)

    def sync_folder(self) -> None:
        self.open("", os.O_DIRECTORY)
        self.sync("")

    def rename(self, path: str, other: str) -> None:
        self.call(Kind.RENAME, path, other=f"{ROOT}/{other}")

    def left(self) -> list[Disk]:
        """Return all disks that a power cut after the last call may leave, each once."""
        history = History(before(), self.calls, ROOT)
        moment = Moment(history, history.end)
        subsets = itertools.chain.from_iterable(
            itertools.combinations(moment.pending, count) for count in range(len(moment.pending) + 1)
        )
        disks: list[Disk] = []
        for kept in subsets:
            disk = contents(moment.image(State(frozenset(kept), "")))
            if disk not in disks:
                disks.append(disk)
        return disks


def before() -> Image:
    """Return a folder with one file, which is durable."""
    image = Image()
    image.folders[TOP]["old"] = 1
    image.files[1] = bytearray(b"before")
    return image


def contents(image: Image) -> Disk:
    return {path: bytes(image.files[number]) for path, number in image.walk() if number in image.files}


def test_without_a_sync_a_new_file_may_have_no_name_no_length_or_no_bytes() -> None:
    program = Program()
    program.open("new")
    program.write("new", b"bytes")
    assert sorted(disk.get("new", b"missing") for disk in program.left()) == [b"", b"\0\0\0\0\0", b"bytes", b"missing"]


def test_a_sync_of_the_file_keeps_its_bytes_and_not_its_name() -> None:
    program = Program()
    program.open("new")
    program.write("new", b"bytes")
    program.sync("new")
    assert sorted(disk.get("new", b"missing") for disk in program.left()) == [b"bytes", b"missing"]


def test_a_sync_of_file_and_folder_keeps_everything() -> None:
    program = Program()
    program.open("new")
    program.write("new", b"bytes")
    program.sync("new")
    program.sync_folder()
    assert program.left() == [{"new": b"bytes", "old": b"before"}]


def test_a_write_after_the_sync_may_be_lost() -> None:
    program = Program()
    program.open("old", 0)
    program.write("old", b"AAAAAA")
    program.sync("old")
    program.write("old", b"BBBBBB")
    assert sorted(disk["old"] for disk in program.left()) == [b"AAAAAA", b"BBBBBB"]


def test_a_later_write_may_be_there_without_an_earlier_one() -> None:
    program = Program()
    program.open("old", 0)
    program.write("old", b"A", 0)
    program.write("old", b"B", 1)
    assert {disk["old"] for disk in program.left()} == {b"before", b"Aefore", b"bBfore", b"ABfore"}


def test_a_rename_without_syncs_may_leave_the_new_name_with_nothing_behind_it() -> None:
    program = Program()
    program.open("new")
    program.write("new", b"bytes")
    program.rename("new", "old")
    found = sorted({disk.get("old", b"missing") for disk in program.left()})
    assert found == [b"", b"\0\0\0\0\0", b"before", b"bytes"]


def test_a_sync_that_began_before_the_write_had_ended_covers_nothing() -> None:
    program = Program()
    program.open("old", 0)
    program.sync("old")
    program.write("old", b"AAAAAA")
    assert {disk["old"] for disk in program.left()} == {b"before", b"AAAAAA"}


def test_a_write_tears_at_sectors() -> None:
    program = Program()
    program.open("old", 0)
    program.write("old", b"A" * SECTOR + b"B" * SECTOR)
    program.sync_folder()
    history = History(before(), program.calls, ROOT)
    moment = Moment(history, history.end)
    disks = [contents(moment.image(state))["old"] for state in moment.chosen_states()]
    assert b"A" * SECTOR + bytes(SECTOR) in disks
    assert any(disk[SECTOR:] == b"B" * SECTOR and disk[:6] == b"before" for disk in disks)
