"""Each part that writes waits for room on a real small disk, and then writes the same as on an empty one."""

from __future__ import annotations

import errno
import json
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.pretrained import save
from tests.unit.test_worker_offload import assert_same_state, train

from harness.small_disk import SmallDisk
from harness.small_models import Tiny
from luwu.core.room import NO_WAIT, Room, RoomWait, WaitStoppedError
from luwu.data.preparation import prepare
from luwu.errors import StoreSpaceError
from luwu.launch.folder import RunFolder
from luwu.launch.job import Job
from luwu.launch.settings import build_settings
from luwu.models.importing import import_pretrained
from luwu.observe.metrics import MetricsLog, read_metrics
from luwu.observe.plots import draw_loss
from luwu.store.dcp_output import export_dcp
from luwu.store.exporting import export_safetensors
from luwu.store.values import StoredValues
from luwu.train.worker_log import log_stream


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_an_error_at_once_where_nothing_waits(tmp_path: Path) -> None:
    with pytest.raises(StoreSpaceError, match=rf"cannot write {tmp_path}/file: No space left .* free some space"):
        NO_WAIT.retry(full, tmp_path / "file")


def test_the_wait_ends_with_the_typed_error_when_the_time_is_over(tmp_path: Path) -> None:
    said: list[RoomWait | None] = []
    with pytest.raises(StoreSpaceError):
        Room(0.3, said.append).retry(full, tmp_path / "file", 12345)
    assert [(wait.folder, wait.needed_bytes) for wait in said if wait is not None] == [(str(tmp_path), 12345)]
    assert len(said) == 1
    assert f"{tmp_path} needs at least 12,345 bytes" in str(said[0]) and "waits until 20" in str(said[0])


def test_other_errors_are_not_waited_for(tmp_path: Path) -> None:
    def refuse() -> None:
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        Room(60.0).retry(refuse, tmp_path)


def test_who_asks_for_an_end_does_not_wait(tmp_path: Path) -> None:
    stop = threading.Event()
    with pytest.raises(WaitStoppedError):
        Room(60.0, lambda wait: stop.set(), stop.is_set).retry(full, tmp_path)


def test_a_row_is_written_whole_or_not_at_all(small_disk: SmallDisk) -> None:
    path = small_disk.path / "rows"
    with path.open("ab", buffering=0) as file:
        NO_WAIT.append(file, b"a" * 4000, path)
        small_disk.fill()
        with pytest.raises(StoreSpaceError):
            NO_WAIT.append(file, b"b" * 400, path)  # there is room for 96 bytes
        assert path.read_bytes() == b"a" * 4000
        small_disk.room().append(file, b"c" * 400, path)
    assert path.read_bytes() == b"a" * 4000 + b"c" * 400
    assert small_disk.waited()


def test_a_file_is_written_whole_or_stays_as_it_was(small_disk: SmallDisk) -> None:
    path = small_disk.path / "file"
    NO_WAIT.write_file(path, "before")
    small_disk.fill()
    with pytest.raises(StoreSpaceError):
        NO_WAIT.write_file(path, "x" * 10000)
    assert path.read_text() == "before" and len(list(small_disk.path.iterdir())) == 2
    small_disk.room().write_file(path, "x" * 10000)
    assert path.read_text() == "x" * 10000
    assert small_disk.waited()


def test_settings_and_job_wait_for_room(small_disk: SmallDisk) -> None:
    folder, settings = RunFolder(small_disk.path), build_settings()
    small_disk.fill()
    folder.save_settings(settings, small_disk.room())
    assert small_disk.waited()
    assert folder.saved_settings() is not None
    small_disk.fill()
    job = Job(settings=settings, folder=str(small_disk.path), socket_path=None, launcher_pid=1)
    job.write(folder.job_path, small_disk.room())
    assert small_disk.waited()
    assert Job.read(folder.job_path) == job


def test_the_metrics_of_a_run_that_goes_on_wait_for_room(small_disk: SmallDisk) -> None:
    path = small_disk.path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"attempt": attempt, "step": attempt + 1}) + "\n" for attempt in range(500)))
    log = MetricsLog(path, small_disk.room())
    small_disk.fill()
    log.resume(400, 400, {})
    log.close()
    assert small_disk.waited()
    assert [row["attempt"] for row in read_metrics(path)] == list(range(400))


def test_plots_wait_for_room(small_disk: SmallDisk, tmp_path: Path) -> None:
    rows = [{"committed": True, "loss": 1.0 / step, "step": step} for step in range(1, 20)]
    draw_loss(rows, tmp_path / "loss.png", 0.1, 2.0)
    small_disk.fill()
    draw_loss(rows, small_disk.path / "loss.png", 0.1, 2.0, room=small_disk.room())
    assert small_disk.waited()
    assert (small_disk.path / "loss.png").read_bytes() == (tmp_path / "loss.png").read_bytes()


def test_a_line_of_a_workers_log_waits_for_room(small_disk: SmallDisk) -> None:
    path = small_disk.path / "worker-0.log"
    with path.open("wb") as file:
        stream = log_stream(file.fileno(), path, small_disk.room())
        stream.write("a" * 4000 + "\n")
        small_disk.fill()
        stream.write("b" * 400 + "\n")
        assert path.read_text() == "a" * 4000 + "\n" + "b" * 400 + "\n"
    assert small_disk.waited()


@pytest.mark.parametrize("filled_at", [0.2, 0.9])
def test_a_text_that_is_prepared_waits_for_room(small_disk: SmallDisk, tmp_path: Path, filled_at: float) -> None:
    (tmp_path / "text").write_bytes(np.random.default_rng(1).integers(32, 127, 6 << 20, dtype=np.uint8).tobytes())
    undisturbed = prepare(tmp_path / "text", tmp_path / "undisturbed")

    def fill(done: float, total: float) -> None:
        if done >= filled_at * total and not small_disk.said:
            small_disk.fill()

    corpus = prepare(tmp_path / "text", small_disk.path, on_progress=fill, room=small_disk.room())
    assert small_disk.waited()
    assert corpus.checksum == undisturbed.checksum
    corpus.verify()
    assert sorted(path.name for path in small_disk.path.iterdir()) == ["corpus.bin", "corpus.json", "corpus.lock"]


def test_a_text_waits_for_a_disk_that_has_no_room_for_another_file(small_disk: SmallDisk, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some words and some more\n" * 1000)
    undisturbed = prepare(tmp_path / "text", tmp_path / "undisturbed")
    for missing in ("corpus.lock", "corpus.bin"):
        small_disk.refuse_files()
        corpus = prepare(tmp_path / "text", small_disk.path, room=small_disk.room())
        assert small_disk.waited(), missing
        assert corpus.checksum == undisturbed.checksum
        for name in ("corpus.json", "corpus.bin"):
            (small_disk.path / name).unlink()


def test_offloaded_activations_wait_for_room(small_disk: SmallDisk) -> None:
    model, peer = Tiny(depth=5), Tiny(depth=5)
    peer.load_state_dict(model.state_dict())
    session = FakeSession()
    session.room = small_disk.room()
    luwu_state = offloaded_state(model, session, small_disk)
    assert small_disk.waited()
    assert_same_state(luwu_state, offloaded_state(peer, FakeSession(), None), 0.0)


def offloaded_state(model: Tiny, session: FakeSession, disk: SmallDisk | None) -> dict[str, torch.Tensor]:
    import luwu

    luwu.parallelize(model, session, offload=None if disk is None else disk.path)  # type: ignore[arg-type]
    if disk is not None:
        disk.fill()
    train(model, luwu.AdamW(model), range(3))
    return luwu.full_state_dict(model)


@pytest.mark.parametrize("export", [partial(export_safetensors, shard_bytes=20_000), export_dcp])
def test_an_export_waits_for_room(export: Callable[..., object], small_disk: SmallDisk, tmp_path: Path) -> None:
    save("llama", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    undisturbed = tmp_path / "undisturbed"
    export([tmp_path / "store"], undisturbed)

    def fill(done: float, total: float) -> None:
        if done >= 0.4 * total and not small_disk.said:
            small_disk.fill()

    target = small_disk.path / "out"
    export([tmp_path / "store"], target, progress=fill, room=small_disk.room())
    assert small_disk.waited()
    tensors = [path for path in undisturbed.iterdir() if path.suffix in (".safetensors", ".distcp")]
    assert tensors
    for path in tensors:
        assert (target / path.name).read_bytes() == path.read_bytes()
    assert not list(target.glob("*.partial"))


def test_an_import_waits_for_room(small_disk: SmallDisk, tmp_path: Path) -> None:
    save("llama", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "undisturbed"])
    store = small_disk.path / "store"

    def fill(done: float, total: float) -> None:
        if not done:
            for name in ("version-0.luwu", "version-1.luwu"):
                small_disk.punch(store / name)
            small_disk.fill()

    import_pretrained(tmp_path / "in", [store], progress=fill, room=small_disk.room())
    assert small_disk.waited()
    with StoredValues([store]) as found, StoredValues([tmp_path / "undisturbed"]) as expected:
        for place, other in zip(found.places(), expected.places(), strict=True):
            count = place.parameter.numel
            mine, theirs = found.read(place, 0, count, states=True), expected.read(other, 0, count, states=True)
            assert torch.equal(mine.exact(), theirs.exact()), place.parameter.name


def test_a_command_that_meets_a_full_disk_anywhere_ends_in_one_line(
    small_disk: SmallDisk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from luwu.cli.main import app

    text = small_disk.path / "text"
    text.write_text("some words and some more\n" * 50)
    target = small_disk.path / "tokenizer.json"
    small_disk.fill()
    monkeypatch.setattr(sys, "argv", ["luwu"])
    with pytest.raises(SystemExit) as ended:
        app(["tokenizer", str(text), "--out", str(target)])
    assert ended.value.code == 1
    assert "No space left on device; free some space" in capsys.readouterr().err
