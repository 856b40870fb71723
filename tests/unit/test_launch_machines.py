"""Launchers on other machines as the launcher that has the run sees them, and the files that they fetch from it."""

from __future__ import annotations

import json
import queue
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from luwu.control import control_pb2 as pb
from luwu.core.errors import ConfigError, DataError, LuwuError, ServerError
from luwu.core.room import NO_WAIT
from luwu.data.corpus import Corpus
from luwu.data.preparation import prepare
from luwu.launch.fetching import fetch_files
from luwu.launch.folder import RunFolder
from luwu.launch.job import Job
from luwu.launch.joining import parse_job
from luwu.launch.last_attempts import make_room, read_attempts
from luwu.launch.machine_words import machine_text
from luwu.launch.machines import MODEL_CONFIG, READ_BYTES, Machines, files_of
from luwu.launch.settings import Settings
from luwu.server.launchers import Machine
from luwu.server.participants import LauncherMember

RECORD = {
    "attempt": 7, "loss": 1.5, "sequences": 3, "tokens": 96, "lr": 0.1, "loss_scale": None, "workers": 2, "step": 6,
    "bytes_pulled": 10, "bytes_pushed": 20,
}  # fmt: skip


class Here:
    """Machines of a run whose workers 1 and 2 are elsewhere, and what they told."""

    def __init__(self, folder: Path) -> None:
        self.reports: list[tuple[int, Any]] = []
        self.said: list[str] = []
        self.folder = RunFolder(folder)
        self.machines = Machines([1, 2], self.folder, lambda *words: self.reports.append(words), self.said.append)

    def publish(self, files: dict[str, Path] | None = None) -> None:
        job = Job(settings=Settings(), folder="/runs/a", socket_path=None, launcher_pid=1)
        self.machines.publish(job, files or {})


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def launcher(host: str) -> LauncherMember:
    return LauncherMember(name=f"launcher {host}", peer="10.0.0.2:4000", host=host)


def offer(machines: Machines, host: str, workers: int) -> LauncherMember:
    """Join and offer at once."""
    member = launcher(host)
    machines.join(member)
    machines.offer(member, workers)
    return member


def told(to: LauncherMember) -> list[pb.Event]:
    found = []
    try:
        while True:
            found.append(to.events.get_nowait())
    except queue.Empty:
        return found


def test_places_are_given_once_enough_are_offered(here: Here) -> None:
    """A launcher is told the job first, without whose files it offers nothing."""
    one, two = launcher("one"), launcher("two")
    here.machines.join(one)
    assert told(one) == []
    here.publish()
    here.machines.join(two)
    for member in (one, two):
        [event] = told(member)
        assert json.loads(event.job.job)["folder"] == "/runs/a"
    here.machines.offer(one, 1)
    assert (told(one), here.machines.begun, here.machines.missing) == ([], False, 1)
    here.machines.offer(two, 1)
    assert [list(event.places.ranks) for event in (*told(one), *told(two))] == [[1], [2]]
    assert here.said == ["one (10.0.0.2:4000) runs worker 1", "two (10.0.0.2:4000) runs worker 2"]


def test_an_offer_of_a_launcher_that_has_gone_takes_no_place(here: Here) -> None:
    here.publish()
    one = launcher("one")
    here.machines.join(one)
    here.machines.go(one)
    here.machines.offer(one, 2)
    assert not here.machines.begun and here.said == []


def test_a_launcher_that_goes_is_told_of_and_replaced(here: Here) -> None:
    here.publish()
    one = offer(here.machines, "one", 2)
    here.machines.go(one)
    assert here.machines.unfinished and here.machines.losses == 1
    two = offer(here.machines, "two", 2)
    assert [list(event.places.ranks) for event in told(two)[1:]] == [[1, 2]]
    assert here.said[1:] == ["one has gone, where workers 1 and 2 ran", "two (10.0.0.2:4000) runs workers 1 and 2"]
    assert here.reports.pop() == (1, {"kind": "stage", "text": "waiting for another machine", "detail": ""})
    offer(here.machines, "three", 1)
    assert here.said[-1] == "three (10.0.0.2:4000) waits to take the place of a machine that is lost"
    with pytest.raises(ConfigError, match="worker 1: expected one that this launcher runs; join again"):
        here.machines.tell(one, 1, '{"kind": "stopped"}')
    here.machines.tell(two, 1, '{"kind": "stopped"}')
    assert here.reports == [(1, {"kind": "stopped"})]


def test_a_launcher_that_goes_after_its_workers_have_finished_is_not_lost(here: Here) -> None:
    here.publish()
    one = offer(here.machines, "one", 2)
    for rank in (1, 2):
        assert here.machines.unfinished
        here.machines.tell(one, rank, '{"kind": "result"}')
    here.machines.go(one)
    assert not here.machines.unfinished
    assert len(here.said) == 1 and not here.machines.losses, "nobody is told of a loss"


def test_stop_and_fence_reach_the_launcher_that_runs_the_worker(tmp_path: Path) -> None:
    machines = Machines([0, 1], RunFolder(tmp_path), lambda *words: None, lambda text: None)
    machines.publish(Job(settings=Settings(), folder="/a", socket_path=None, launcher_pid=1), {})
    one, two = offer(machines, "one", 1), offer(machines, "two", 1)
    machines.ask_to_stop()
    machines.kill_one(1)
    machines.end(ServerError("the disk has gone"), stopped=False)
    assert [event.WhichOneof("kind") for event in told(one)] == ["job", "places", "stop", "ended"]
    _, _, fence, ended = told(two)
    assert fence.notice.fenced == 1
    assert (ended.ended.error, ended.ended.message) == ("ServerError", "the disk has gone")


@pytest.mark.parametrize(
    ("report", "kind", "message"),
    [
        ({"kind": "error", "type": "DataError", "message": "no text"}, DataError, "on one: no text"),
        ({"kind": "error", "type": "DataError"}, LuwuError, "on one: worker 1: report of the kind 'error': expected"),
    ],
)
def test_a_workers_error_names_its_machine(here: Here, report: Any, kind: type, message: str) -> None:
    here.publish()
    one = offer(here.machines, "one", 2)
    here.machines.tell(one, 1, json.dumps(report))
    failure = here.machines.failure
    assert isinstance(failure, kind) and str(failure).startswith(message)


def test_what_a_worker_notes_with_its_vote_is_in_the_run_folder(here: Here) -> None:
    path = here.folder.attempts_path(1)
    make_room(path)
    here.machines.note(1, RECORD)
    assert read_attempts(path) == [RECORD]
    here.machines.close()
    with pytest.raises(ConfigError, match="report of worker 1: expected the record of an attempt, found"):
        here.machines.note(1, RECORD | {"attempt": -1})
    with pytest.raises(LuwuError, match=r"worker-2\.attempts: expected to note an attempt in it"):
        here.machines.note(2, RECORD)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "all of it: "),
        ('{"settings": {}, "launcher_pid": 0, "socket_path": null, "folder": "a"}', "launcher_pid: "),
    ],
)
def test_a_job_of_another_version_is_refused_by_its_field(text: str, found: str) -> None:
    with pytest.raises(ConfigError, match=f"job: expected one that this version .* reads, found {found}.*; install"):
        parse_job(text)


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Path]:
    """The files of a run whose corpus is longer than one piece, and of a model's configuration."""
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "text.txt").write_text("so it was " * (READ_BYTES // 8))
    prepare(tmp_path / "text.txt", folder)
    (tmp_path / "config.json").write_text("{}")
    settings = Settings.model_validate({"model": {"path": str(tmp_path / "config.json")}})
    return files_of(RunFolder(folder), settings)


def fetch(files: dict[str, Path], machines: Machines, folder: Path) -> list[str]:
    """Fetch a run's files; return the names of those that were read beyond their first piece."""
    asked = []

    def read(name: str, offset: int) -> bytes:
        if offset:
            asked.append(name)
        return machines.read(name, offset)

    sizes = {name: path.stat().st_size for name, path in files.items()}
    fetch_files(sizes, folder, read, lambda done, total: None, NO_WAIT)
    return sorted(set(asked))


def test_a_corpus_is_fetched_once_and_is_whole(here: Here, corpus: dict[str, Path], tmp_path: Path) -> None:
    here.publish(corpus)
    assert set(corpus) == {"corpus.bin", "corpus.json", MODEL_CONFIG}
    assert "corpus.bin" in fetch(corpus, here.machines, tmp_path / "there")
    for name, path in corpus.items():
        if name != "corpus.json":
            assert (tmp_path / "there" / name).read_bytes() == path.read_bytes()
    first = Corpus.load(tmp_path / "there")
    assert first is not None and first.checksum is not None
    assert "corpus.bin" not in fetch(corpus, here.machines, tmp_path / "there")
    kept = tmp_path / "there" / "corpus.bin"
    whole = kept.read_bytes()
    for damaged in (b"short", bytes([whole[0] ^ 1]) + whole[1:]):
        kept.write_bytes(damaged)
        assert "corpus.bin" in fetch(corpus, here.machines, tmp_path / "there")
        assert kept.read_bytes() == whole


def test_a_fetch_that_was_broken_off_goes_on(here: Here, corpus: dict[str, Path], tmp_path: Path) -> None:
    here.publish(corpus)
    asked: list[int] = []

    def read(name: str, offset: int) -> bytes:
        if name == "corpus.bin":
            asked.append(offset)
            if len(asked) == 2:
                raise ServerError("the connection is broken")
        return here.machines.read(name, offset)

    sizes = {name: path.stat().st_size for name, path in corpus.items()}
    for _ in range(2):
        with suppress(ServerError):
            fetch_files(sizes, tmp_path / "there", read, lambda done, total: None, NO_WAIT)
    assert asked[:3] == [0, READ_BYTES, READ_BYTES]
    assert (tmp_path / "there" / "corpus.bin").read_bytes() == corpus["corpus.bin"].read_bytes()


def test_a_corpus_that_comes_damaged_is_refused(here: Here, corpus: dict[str, Path], tmp_path: Path) -> None:
    content = bytearray(corpus["corpus.bin"].read_bytes())
    content[READ_BYTES + 1] ^= 1
    corpus["corpus.bin"].write_bytes(content)
    here.publish(corpus)
    with pytest.raises(DataError, match=r"corpus\.bin: expected the checksum"):
        fetch(corpus, here.machines, tmp_path / "there")


def test_files_beside_a_runs_own_are_neither_given_nor_taken(
    here: Here, corpus: dict[str, Path], tmp_path: Path
) -> None:
    here.publish(corpus)
    with pytest.raises(ConfigError, match=r"file: expected one of .*, found '\.\./\.\./etc/passwd'"):
        here.machines.read("../../etc/passwd", 0)
    with pytest.raises(ConfigError, match=r"file: expected one of .*, found '\.\./x'"):
        fetch_files({"../x": 3}, tmp_path / "there", lambda name, offset: b"", lambda *counts: None, NO_WAIT)
    with pytest.raises(ServerError, match=r"corpus\.bin: expected 4 bytes from the run's machine, found 3"):
        fetch_files(
            {"corpus.bin": 4, "corpus.json": 2}, tmp_path / "there",
            lambda name, offset: {"corpus.json": b"{}", "corpus.bin": b"abc"}[name][offset:],
            lambda *counts: None, NO_WAIT,
        )  # fmt: skip


def test_machines_are_told_with_the_workers_that_they_run_or_wait_for(here: Here) -> None:
    here.publish()
    assert here.machines.machines() == []
    first = offer(here.machines, "a", 2)
    offer(here.machines, "b", 2)
    joined = launcher("c")
    here.machines.join(joined)
    peer = "10.0.0.2:4000"
    assert here.machines.machines() == [
        Machine("a", peer, (1, 2), 0), Machine("b", peer, (), 2), Machine("c", peer, (), 0),
    ]  # fmt: skip
    here.machines.tell(first, 1, json.dumps({"kind": "result", "values": {}}))
    assert here.machines.machines()[0].ranks == (2,)
    here.machines.go(first)
    assert here.machines.machines()[0] == Machine("b", peer, (2,), 0)


@pytest.mark.parametrize(
    ("ranks", "waits", "words"),
    [
        ([2], 0, "machine a (10.0.0.2:4000): runs worker 2"),
        ([1, 2], 0, "machine a (10.0.0.2:4000): runs workers 1 and 2"),
        ([], 1, "machine a (10.0.0.2:4000): waits to run 1 worker in the place of lost ones"),
        ([], 0, "machine a (10.0.0.2:4000): runs no worker now"),
    ],
)
def test_a_machine_in_words(ranks: list[int], waits: int, words: str) -> None:
    assert machine_text("a", "10.0.0.2:4000", ranks, waits) == words
