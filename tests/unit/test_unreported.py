"""Rows of attempts that were committed, or rolled back, and never reported."""

from __future__ import annotations

import json
import math
import os

import pytest

from luwu.launch.folder import RunFolder
from luwu.launch.last_attempts import KEPT_ATTEMPTS, LastAttempts, make_room, read_last_attempts
from luwu.observe.meter import StepRecord
from luwu.observe.metrics import MetricsLog, read_metrics
from luwu.observe.unreported import unreported_rows


def row(attempt, step, committed=True):
    return {"attempt": attempt, "step": step, "committed": committed, "loss": 1.0}


def noted(attempt, step, workers=2, loss=2.0):
    return {
        "attempt": attempt,
        "workers": workers,
        "step": step,
        "loss": loss,
        "sequences": 4,
        "tokens": 32,
        "lr": 0.1,
        "loss_scale": None,
        "bytes_pulled": 100,
        "bytes_pushed": 50,
    }


def ends(rows):
    return [(found["attempt"], found["step"], found["committed"]) for found in rows]


def test_nothing_is_added_where_nothing_is_missing():
    assert unreported_rows([row(0, 1), row(1, 2)], 2, 2, {1: [noted(1, 1)]}) == []
    assert unreported_rows([], 7, 7, {}) == []  # another run's steps
    assert unreported_rows([row(7, 8)], 8, 8, {3: [noted(3, 3)]}) == []


def test_a_missing_row_has_what_its_workers_noted_and_nothing_else():
    first, second = noted(1, 1, loss=1.0), noted(1, 1, loss=4.0) | {"sequences": 2, "tokens": 16}
    (found,) = unreported_rows([row(0, 1)], 2, 2, {1: [first, second]})
    assert found == {
        "step": 2,
        "attempt": 1,
        "committed": True,
        "loss": 2.0,
        "lr": 0.1,
        "grad_norm": None,
        "tokens": 48,
        "seconds": None,
        "tokens_per_second": None,
        "hidden": None,
        "bytes_pulled": 200,
        "bytes_pushed": 100,
        "validation_loss": None,
        "sequences": [4, 2],
    }
    (found,) = unreported_rows([row(0, 1)], 2, 2, {1: [noted(1, 1) | {"loss_scale": 8.0}]})
    assert found["loss_scale"] == 8.0


def test_the_first_attempt_of_a_run_may_be_the_missing_one():
    assert ends(unreported_rows([], 1, 1, {0: [noted(0, 0)]})) == [(0, 1, True)]
    assert ends(unreported_rows([], 8, 8, {7: [noted(7, 7)]})) == [(7, 8, True)]


def test_counts_tell_which_attempts_were_rolled_back():
    known = {attempt: [noted(attempt, step)] for attempt, step in ((1, 1), (2, 2), (3, 2), (4, 2))}
    found = unreported_rows([row(0, 1)], 5, 3, known)
    assert ends(found) == [(1, 2, True), (2, 2, False), (3, 2, False), (4, 3, True)]
    assert ends(unreported_rows([row(0, 1)], 3, 3, {})) == [(1, 2, True), (2, 3, True)]
    assert ends(unreported_rows([row(0, 1)], 3, 1, {})) == [(1, 1, False), (2, 1, False)]


def test_what_counts_do_not_tell_stays_unknown():
    found = unreported_rows([row(0, 1)], 4, 2, {})
    assert ends(found) == [(1, None, None), (2, None, None), (3, 2, None)]
    assert {found[0][name] for name in ("loss", "lr", "tokens", "bytes_pulled")} == {None}


def test_an_attempt_that_the_store_does_not_count_is_made_again(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(StepRecord(1, 0, True, 2.0, 0.1, None, 64, 0.5, 128.0, 0.9, 1000, 500))
    log.resume(3, 3, {attempt: [noted(attempt, attempt, loss=math.nan)] for attempt in (1, 2, 3)})
    log.append(StepRecord(4, 3, True, 2.0, 0.1, None, 64, 0.5, 128.0, 0.9, 1000, 500))
    log.close()
    rows = read_metrics(log.path)
    assert ends(rows) == [(0, 1, True), (1, 2, True), (2, 3, True), (3, 4, True)]
    assert rows[1]["loss"] is None
    assert list(rows[1]) == [*rows[0], "validation_loss"]


def test_damaged_first_lines_are_written_again_from_what_was_noted(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(row(attempt, attempt + 1)) for attempt in range(4, 7)]
    path.write_text("\n".join(["xx", "", *lines[2:], ""]))
    log = MetricsLog(path)
    log.resume(7, 7, {attempt: [noted(attempt, attempt)] for attempt in range(2, 7)})
    log.close()
    rows = read_metrics(path)
    assert ends(rows) == [(4, 5, True), (5, 6, True), (6, 7, True)]  # earlier notes may be another run's
    assert [found["loss"] for found in rows] == [2.0, 2.0, 1.0]


def test_a_damaged_first_line_of_an_attempt_that_nobody_noted_stays_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("xx\n" + json.dumps(row(7, 8)) + "\n")
    log = MetricsLog(path)
    log.resume(8, 8, {3: [noted(3, 3)]})
    log.close()
    assert ends(read_metrics(path)) == [(7, 8, True)]


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def write(folder, rank, *records):
    make_room(folder.attempts_path(rank))
    attempts = LastAttempts(folder.attempts_path(rank))
    for record in records:
        attempts.note(record)
    attempts.close()


def test_the_last_attempts_of_all_workers_are_found(folder):
    count = KEPT_ATTEMPTS + 3
    for rank in range(2):
        write(folder, rank, *(noted(attempt, attempt, loss=rank) for attempt in range(count)))
    found = read_last_attempts(folder.attempts_paths())
    assert sorted(found) == list(range(3, count))
    assert [part["loss"] for part in found[count - 1]] == [0, 1]


def test_only_attempts_that_every_worker_noted_count(folder):
    write(folder, 0, noted(0, 0), noted(1, 1), noted(2, 2, workers=1))
    write(folder, 1, noted(0, 0), noted(3, 3))
    write(folder, 2, noted(0, 0, workers=3))  # left by a run that had more workers
    assert {attempt: len(parts) for attempt, parts in read_last_attempts(folder.attempts_paths()).items()} == {
        0: 2,
        2: 1,
    }


def test_what_is_torn_counts_as_not_noted(folder):
    write(folder, 0, noted(0, 0, workers=1), noted(1, 1, workers=1))
    with folder.attempts_path(0).open("r+b") as file:
        file.seek(20)
        file.write(b"\0" * 8)
    assert list(read_last_attempts(folder.attempts_paths())) == [1]


def test_a_note_takes_no_room_on_the_disk(folder):
    """A full disk takes no row away: the room was taken when the run began."""
    path = folder.attempts_path(0)
    make_room(path)
    size, blocks = path.stat().st_size, path.stat().st_blocks
    assert blocks * 512 >= size
    attempts = LastAttempts(path)
    for attempt in range(KEPT_ATTEMPTS):
        attempts.note(
            noted(attempt, attempt, loss=1 / 3) | {"tokens": 2**60, "bytes_pulled": 2**60, "bytes_pushed": 2**60}
        )
    attempts.close()
    os.sync()
    assert (path.stat().st_size, path.stat().st_blocks) == (size, blocks)
    assert all(json.loads(line)["tokens"] == 2**60 for line in path.read_text().splitlines())


def test_a_copy_made_with_hard_links_keeps_its_notes(folder, tmp_path):
    write(folder, 0, noted(0, 0, workers=1))
    copy = tmp_path / "copy"
    copy.hardlink_to(folder.attempts_path(0))
    write(folder, 0, noted(1, 1, workers=1))
    assert list(read_last_attempts({0: copy})) == [0]
    assert list(read_last_attempts(folder.attempts_paths())) == [0, 1]
