"""`luwu watch` shows the wear of the disks that a run's store is on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luwu.control import control_pb2 as pb
from luwu.core.errors import NotUnderWayError
from luwu.core.units import share_text
from luwu.watch import runs as watch_runs
from luwu.watch.runs import Cursor, WatchedRun
from luwu.watch.state import Sample
from luwu.watch.terminal import text_of
from luwu.watch.wear import (
    WRITTEN,
    StepWrites,
    StoreFolder,
    endurance_of,
    wear_record,
    writes_between,
    writes_of_rows,
)


def row(written: Any, seconds: Any = 2.0) -> dict[str, Any]:
    return {"seconds": seconds, "server": {"written_bytes": written}}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([row(10), row(30, 4.0)], StepWrites(20.0, 3.0)),
        ([row(10), {"seconds": 9.0}, row("much"), row(10, None), {"server": 3}], StepWrites(10.0, 2.0)),
        ([], None),
        ([row(-1)], None),
    ],
)
def test_what_a_step_writes_is_known_from_rows_that_tell_it(rows: list[Any], found: StepWrites | None) -> None:
    assert writes_of_rows(rows) == found


@pytest.mark.parametrize(
    ("first", "now", "found"),
    [
        ((0.0, 100, 5), (10.0, 300, 9), StepWrites(50.0, 2.5)),
        ((0.0, 100, 5), (10.0, 100, 5), None),
        ((0.0, 100, 5), (10.0, 50, 9), None),  # the server was started again
    ],
)
def test_what_a_step_writes_is_known_from_a_server_between_two_looks(
    first: tuple[float, int, int], now: tuple[float, int, int], found: StepWrites | None
) -> None:
    samples = [Sample(at, {WRITTEN: written, "luwu_server_step": step}) for at, written, step in (first, now)]
    assert writes_between(*samples) == found
    assert writes_between(None, samples[1]) is None


def test_a_drive_wears_by_all_folders_that_it_has() -> None:
    folders = [StoreFolder("/a", "8:0", "sda"), StoreFolder("/b", "8:0", "sda"), StoreFolder("/c", "8:16", "")]
    record = wear_record(300e9, "by this run", StepWrites(3e6, 0.5), folders, 10**12)
    assert json.loads(json.dumps(record)) == record
    assert [(each["written_bytes"], each["step_bytes"]) for each in record["stores"]] == [(100e9, 1e6)] * 3
    assert [each["endurance_share"] for each in record["stores"]] == [0.2, 0.2, 0.1]
    assert [each["disk"] for each in record["stores"]] == ["sda", "sda", ""]
    # Two folders of a megabyte a step each, two steps a second: 10**12 bytes are there after 250,000 seconds.
    assert [round(each["life_days"] * 86400) for each in record["stores"]] == [250_000, 250_000, 500_000]


def test_without_an_endurance_or_folders_the_bytes_are_told_alone() -> None:
    [store] = wear_record(8.0, "by this run", None, [StoreFolder("/a", "8:0", "sda")], None)["stores"]
    assert (store["written_bytes"], store["step_bytes"], store["endurance_share"], store["life_days"]) == (
        8.0,
        None,
        None,
        None,
    )
    [store] = wear_record(8.0, "since", StepWrites(2.0, 1.0), [], 10**12)["stores"]
    assert (store["folder"], store["step_bytes"], store["endurance_share"]) == ("", 2.0, None)


@pytest.mark.parametrize(
    ("settings", "found"),
    [({"run.endurance": "600TBW"}, 600 * 10**12), ({}, None), ({"run.endurance": "much"}, None)],
)
def test_the_endurance_is_the_setting_of_the_run(settings: dict[str, Any], found: int | None) -> None:
    assert endurance_of(settings) == found


@pytest.mark.parametrize(
    ("share", "words"), [(0.0, "under 0.01%"), (0.00123, "0.12%"), (0.05, "5%"), (0.5, "50%"), (12.0, "1,200%")]
)
def test_a_share_of_an_endurance_has_the_digits_that_matter(share: float, words: str) -> None:
    assert share_text(share) == words


def write_run(folder: Path, written: int) -> None:
    (folder / "store").mkdir()
    rows = [{"attempt": at, "step": at + 1, "committed": True, **row(40)} for at in range(3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (folder / "config.toml").write_text('[run]\nendurance = "1GBW"\n')
    (folder / "written.json").write_text(json.dumps({"bytes": written}))


def watch(where: str, monkeypatch: pytest.MonkeyPatch, *answers: pb.StatusReply | Exception) -> WatchedRun:
    left, times = list(answers), iter(range(100))

    def answer(*_: object, **__: object) -> pb.StatusReply:
        reply = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(watch_runs, "ask_run", answer)
    return WatchedRun(where, clock=lambda: float(next(times)))


def test_a_run_that_has_ended_shows_what_it_wrote_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 500_000_000)
    run = watch(str(tmp_path), monkeypatch, NotUnderWayError("none"))
    run.refresh()
    record, _ = run.update(Cursor())
    assert record["wear"]["whose"] == "by this run"
    [store] = record["wear"]["stores"]
    assert (store["folder"], store["written_bytes"], store["step_bytes"]) == (f"{tmp_path}/store", 5e8, 40.0)
    assert store["endurance_share"] == 0.5 and store["life_days"] * 86400 == pytest.approx(1e9 / 20)
    text = text_of([run])
    assert "500 MB written by this run, 40 B a step, 50% of the disk's rated endurance of 1 GB, which lasts" in text


def test_a_live_run_has_what_its_server_counts_before_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, 0)
    run = watch(str(tmp_path), monkeypatch, pb.StatusReply(figures={WRITTEN: 700.0}))
    run.refresh()
    assert run.wear is not None and run.wear["stores"][0]["written_bytes"] == 700.0


def test_the_server_of_a_url_tells_what_it_wrote_since_it_opened_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(written: float, step: float) -> pb.StatusReply:
        return pb.StatusReply(figures={WRITTEN: written, "luwu_server_step": step})

    run = watch(
        "luwu://localhost:7", monkeypatch, told(100, 1), told(300, 5), told(50, 0), told(60, 1), pb.StatusReply()
    )
    run.refresh()
    run.refresh()
    assert run.wear is not None and run.wear["whose"] == "since its server opened the store"
    assert run.wear["stores"][0]["step_bytes"] == 50.0
    assert "store: 300 B written since its server opened the store, 50 B a step" in text_of([run])
    run.refresh()
    run.refresh()  # its counts have begun anew
    assert run.wear["stores"][0]["step_bytes"] == 10.0
    run.refresh()
    assert run.wear is None
