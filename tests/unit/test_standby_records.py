"""The record of a standby, the files that go to it, and which of two servers a run joins."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.control import control_pb2 as pb
from luwu.errors import ConfigError, ServerError, StoreCorruptError, StoreFormatError
from luwu.launch import choosing_server
from luwu.launch.choosing_server import serving_one
from luwu.launch.job import ServerAccess
from luwu.server.standby_files import MOST_FILES_BYTES, files_of, note_of, write_files
from luwu.store.standby_record import STANDBY_NAME, StandbyRecord, read_standby, require_alone, write_standby

OWN, OTHER = "luwu://one:7070", "luwu://other:7070"


def test_a_store_without_a_record_has_no_standby(tmp_path: Path) -> None:
    assert read_standby(tmp_path) == StandbyRecord()
    require_alone(tmp_path)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = StandbyRecord(follows=True, other=OTHER, in_sync=True, generation=3)
    write_standby(tmp_path, record)
    assert read_standby(tmp_path) == record
    with pytest.raises(ConfigError, match="is the standby of"):
        require_alone(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"in_sync": true', '"in_sync": false', StoreCorruptError),
        ('"follows": false', '"follows": 0', StoreCorruptError),
        ('"generation": 0', '"generation": -1', StoreCorruptError),
        ('"format": 1', '"format": 9', StoreFormatError),
        ("{", "", StoreCorruptError),
    ],
)
def test_a_record_that_was_changed_decides_nothing(tmp_path: Path, old: str, new: str, error: type[Exception]) -> None:
    write_standby(tmp_path, StandbyRecord(other=OTHER, in_sync=True))
    path = tmp_path / STANDBY_NAME
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(error, match=STANDBY_NAME):
        read_standby(tmp_path)


def test_small_files_of_a_store_go_to_its_standby(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "model").mkdir(parents=True)
    target.mkdir()
    (source / "run.json").write_bytes(b"the run")
    (source / "model" / "tokenizer.json").write_bytes(b"{}")
    (source / "model" / "vast.bin").write_bytes(bytes(MOST_FILES_BYTES))
    (source / "manifest.json").write_bytes(b"not this")
    write_files(target, list(files_of(source)))
    found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert found == {"run.json": b"the run", "model/tokenizer.json": b"{}"}
    assert (note_of(source), note_of(target / "model")) == (b"the run", b"")


@pytest.mark.parametrize(
    "name", ["", "..", "/etc/passwd", "commit.luwu", "manifest.json", "standby.json", "model/../run.json", "model/a/b",
             "model/..", "model/\0", "../run.json"],
)  # fmt: skip
def test_a_server_writes_no_other_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(ServerError, match="none of a store's"):
        write_files(tmp_path, [pb.StoreFile(name=name, content=b"x")])
    assert list(tmp_path.rglob("*")) == []


SILENT = None
FOLLOWS = pb.StandbyStatus(follows=True)
SERVES = pb.StandbyStatus()
LATER = pb.StandbyStatus(generation=1)
REPLACED = pb.StandbyStatus(replaced=True)


@pytest.mark.parametrize(
    ("own", "other", "joined"),
    [
        (SERVES, FOLLOWS, OWN),
        (SERVES, SILENT, OWN),
        (SILENT, LATER, OTHER),
        (FOLLOWS, LATER, OTHER),
        (SERVES, LATER, OTHER),
        (REPLACED, LATER, OTHER),
        (REPLACED, FOLLOWS, OWN),
        (SILENT, FOLLOWS, OWN),
        (SILENT, SILENT, OWN),
    ],
)
def test_a_run_joins_the_one_that_serves(
    monkeypatch: pytest.MonkeyPatch,
    own: pb.StandbyStatus | None,
    other: pb.StandbyStatus | None,
    joined: str,
) -> None:
    def ask(url: str, credentials: object) -> pb.StatusReply:
        found = own if url == OWN else other
        if found is None:
            raise ServerError("it does not answer")
        return pb.StatusReply(standby=found)

    monkeypatch.setattr(choosing_server, "ask_status", ask)
    monkeypatch.setattr(choosing_server, "PAUSE_SECONDS", 0.0)
    said: list[str] = []
    access = ServerAccess(url=OWN, standby=OTHER, connect_seconds=0.001)
    found = serving_one(access, lambda: True, said.append)
    assert (found.url, found.standby) == ((OWN, OTHER) if joined == OWN else (OTHER, OWN))
    assert len(said) == (joined == OTHER)
    assert serving_one(ServerAccess(url=OWN), lambda: True, said.append).url == OWN, "nobody is asked"
