"""`luwu watch` reads files that grow: rows as thinned columns, logs with levels, and the kernel's counts of disks."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from luwu.launch.events import log_event
from luwu.launch.folder import RunFolder
from luwu.watch.columns import CURVES, LAST_ROWS, Columns, thin
from luwu.watch.disks import DiskCounts, disk_of, look_at_disks, read_disk
from luwu.watch.folder import READS, WatchedFolder
from luwu.watch.logs import MOST_BYTES, MOST_LINES, Line, Logs, level_of
from luwu.watch.tails import CALL_BYTES, LONGEST_BYTES, READ_BYTES, Tail


def test_columns_keep_what_is_a_number_and_say_what_is_not_known() -> None:
    columns = Columns()
    columns.append({"attempt": 0, "step": 1, "committed": True, "loss": 2.5, "grad_norm": None, "lr": "high"})
    columns.append({"attempt": 1, "step": 2, "committed": False, "loss": math.inf, "lr": 10**400})
    rows = columns.thinned(0, 10)
    assert (rows["step"], rows["committed"], rows["loss"]) == ([1, 2], [1, 0], [2.5, None])
    assert rows["grad_norm"] == rows["lr"] == rows["validation_loss"] == [None, None]
    assert columns.thinned(1, 10)["step"] == [2]
    assert len(columns) == 2


def test_a_thinned_curve_keeps_its_shape_and_its_validations() -> None:
    generator = random.Random(0)
    loss = [5 - row / 30_000 + generator.gauss(0, 0.1) for row in range(100_000)]
    loss[44_321], loss[77_777] = 90.0, -3.0  # a spike of one row each
    loss[5] = math.nan
    validation = [math.nan] * len(loss)
    validation[::1000] = [4.0] * 100
    committed = [1.0] * len(loss)
    chosen = thin([loss, loss], committed, validation, 0, 3000)
    assert chosen == sorted(set(chosen))
    assert len(chosen) <= 3000 + 100 + 1
    assert {44_321, 77_777, len(loss) - 1} <= set(chosen)
    assert set(range(0, 100_000, 1000)) <= set(chosen)
    assert thin([loss], committed, validation, 99_000, 3000) == list(range(99_000, 100_000))


def test_the_peaks_of_every_curve_stay_in_a_thinned_run() -> None:
    generator = random.Random(0)
    peaks = {name: generator.randrange(20_000) for name in CURVES}
    deeps = {name: generator.randrange(20_000) for name in CURVES}
    columns = Columns()
    for attempt in range(20_000):
        row: dict[str, object] = {name: generator.uniform(1.0, 2.0) for name in CURVES}
        row |= {name: 500.0 for name in CURVES if peaks[name] == attempt}
        row |= {name: 0.25 for name in CURVES if deeps[name] == attempt}
        columns.append(row | {"attempt": attempt, "step": attempt, "committed": True})
        for value in (900.0, 0.0, math.inf):  # no curve has a step that was rolled back
            columns.append(dict.fromkeys(CURVES, value) | {"step": attempt, "committed": False})
    rows = columns.thinned(0, 3000)
    assert len(rows["step"]) <= 3000 + LAST_ROWS + 1
    for name in CURVES:
        drawn = [value for value, done in zip(rows[name], rows["committed"], strict=True) if done == 1]
        assert (min(drawn), max(drawn)) == (0.25, 500.0), name


def test_many_validations_are_thinned_too() -> None:
    rows = [1.0] * 50_000
    assert len(thin([rows, rows], rows, rows, 0, 1000)) <= 2 * 1000 + 1


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_bytes(b"one\ntw")
    assert tail.lines() == [b"one"]
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert tail.lines() == [b"two", b"three"]
    assert tail.restarts == 0


@pytest.mark.parametrize("how", ["replaced", "shorter"])
def test_a_tail_begins_again_where_the_file_is_another_one(tmp_path: Path, how: str) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"one\ntwo\nrest")
    tail = Tail(path)
    assert tail.lines() == [b"one", b"two"]
    if how == "replaced":
        (tmp_path / "new").write_bytes(b"1\n2\n3\nand more than before\n")
        (tmp_path / "new").rename(path)
    else:
        path.write_bytes(b"1\n")
    assert tail.lines()[0] == b"1"
    assert tail.restarts == 1


def test_a_line_may_be_longer_than_one_read(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"x" * (2 * READ_BYTES + 5) + b"\nshort\n")
    tail = Tail(path)
    assert [len(line) for line in tail.lines()] == [2 * READ_BYTES + 5, 5]


def test_a_tail_begins_again_where_another_file_has_the_inodes_number(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path)
    assert tail.lines() == [b"one", b"two"]
    path.write_bytes(b"one, and more of it\ntwo\n")  # as two files do that replace it one after the other
    assert tail.lines() == [b"one, and more of it", b"two"]
    assert tail.restarts == 1


def test_a_line_without_an_end_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with path.open("wb") as file:
        file.truncate(3 * LONGEST_BYTES)
        file.seek(0, os.SEEK_END)
        file.write(b"\nshort\n")
    (long, short) = Tail(path).lines()
    assert LONGEST_BYTES <= len(long) <= LONGEST_BYTES + READ_BYTES and short == b"short"


def test_one_call_reads_a_part_of_a_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.truncate(8 * CALL_BYTES)
    folder = WatchedFolder(tmp_path)
    folder.refresh()
    assert folder.reading == READS / 8
    while folder.reading is not None:
        folder.refresh()
    with path.open("ab") as file:
        file.write(b'\n{"attempt": 0, "step": 1}\n')
    folder.refresh()
    assert [row["step"] for row in folder.recent] == [1]


def test_nothing_is_left_to_read_of_a_file_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.touch()
    os.truncate(path, 8 * CALL_BYTES)
    folder = WatchedFolder(tmp_path)
    folder.refresh()
    assert folder.reading is not None
    path.unlink()
    folder.refresh()
    assert folder.reading is None


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_has_no_lines(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "rows")
    assert Tail(tmp_path / "rows").lines() == []


def test_a_tail_of_the_last_bytes_begins_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"one\ntwo\nthree\n")
    tail = Tail(path, most=8)
    assert tail.lines() == [b"three"]
    with path.open("ab") as file:
        file.write(b"four\nfi")
    assert tail.lines() == [b"four"]
    with path.open("ab") as file:
        file.write(b"ve\n" + b"six\n" * 100)
    assert tail.lines() == [b"six"]
    assert tail.restarts == 0


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("2026-11-01T00:00:00.000Z INFO luwu.server serves", "info"),
        ("WARNING slow", "warning"),
        ("CRITICAL gone", "error"),
        ("DEBUG x", "debug"),
        ("Traceback (most recent call last):", "error"),
        ("RuntimeError: shapes differ", "error"),
        ("/usr/lib/x.py:3: UserWarning: old", "warning"),
        ("step 3 of 10", "info"),
    ],
)
def test_a_line_has_the_level_that_it_names(text: str, level: str) -> None:
    assert level_of(text) == level


def test_logs_give_the_lines_of_all_files_once_and_the_last_ones_alone(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    (tmp_path / "worker-0.log").write_text("ERROR bad\n\n")
    (tmp_path / "template.log").write_bytes(b"\xff fine\n")
    logs.refresh()
    assert logs.since(0) == [Line("template", "info", "\ufffd fine"), Line("worker-0", "error", "ERROR bad")]
    assert logs.since(2) == []
    (tmp_path / "worker-1.log").write_text("".join(f"line {number}\n" for number in range(MOST_LINES + 7)))
    logs.refresh()
    assert logs.count == MOST_LINES + 9
    assert [line.text for line in logs.since(0)] == [f"line {number}" for number in range(7, MOST_LINES + 7)]
    assert len(logs.since(logs.count - 3)) == 3


def test_of_a_long_log_the_end_is_read(tmp_path: Path) -> None:
    with (tmp_path / "worker-0.log").open("wb") as file:
        file.truncate(100 * MOST_BYTES)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    logs = Logs(tmp_path)
    logs.refresh()
    assert [line.text for line in logs.since(0)] == ["last"]


def test_a_line_of_one_long_word_is_looked_at_once() -> None:
    # For each letter of it a pattern that is tried there would look at the rest: hours for this one.
    assert level_of("x" * 2_000_000) == "info"


def test_the_kernels_counts_of_a_disk_are_read_and_others_left_out(tmp_path: Path) -> None:
    (tmp_path / "nvme0n1").mkdir()
    (tmp_path / "nvme0n1" / "stat").write_text("  10 0 100 0 20 0 300 0 7 0 0\n")
    (tmp_path / "259:0").symlink_to(tmp_path / "nvme0n1")
    assert read_disk("259:0", tmp_path) == ("nvme0n1", DiskCounts(51200, 153600, 7))
    assert read_disk("0:1", tmp_path) is None
    (tmp_path / "nvme0n1" / "stat").write_text("1 2\n")
    assert read_disk("259:0", tmp_path) is None
    assert disk_of(tmp_path / "none") is None
    assert look_at_disks([tmp_path / "none"]) == {}


def test_a_disk_that_is_there_is_found_once(tmp_path: Path) -> None:
    assert len(look_at_disks([tmp_path, tmp_path])) <= 1
    assert json.dumps(disk_of(tmp_path))


def test_the_figures_of_now_are_in_a_thinned_curve() -> None:
    rows = 50_000
    validation = [math.nan] * rows
    validation[3::7] = [4.0] * len(range(3, rows, 7))
    chosen = thin([[1.0] * rows], [1.0] * rows, validation, 0, 1000)
    last = max(row for row in range(rows) if validation[row] == 4.0)
    assert {last, *range(rows - 20, rows)} <= set(chosen)
    columns = Columns()
    for attempt in range(9000):
        columns.append({"attempt": attempt, "step": attempt, "committed": attempt % 2 == 0, "loss": 2.0})
    columns.append({"attempt": 9000, "step": 9000, "loss": 2.0})  # which does not say so
    assert columns.rolled_back == 4500 and len(columns.thinned(0, 300)["step"]) < 400


def test_what_happened_to_the_processes_of_a_run_is_among_its_logs(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    log_event(folder, "worker 1 was killed by SIGKILL; starting another (restart 1 of 3)")
    log_event(folder, "worker 0 was killed by SIGKILL; the last lines:\n  none")
    log_event(RunFolder(tmp_path / "gone"), "nobody can write this down")
    logs = Logs(tmp_path)
    logs.refresh()
    first, second = logs.since(0)
    assert (first.source, first.level) == (second.source, second.level) == ("launcher", "warning")
    assert first.text.endswith(" WARNING worker 1 was killed by SIGKILL; starting another (restart 1 of 3)")
    assert second.text.endswith(" the last lines:   none")


@pytest.mark.parametrize(
    ("stores", "found"),
    [('["/a", "/b"]', ["/a", "/b"]), ("true", []), ("7", []), ('"/a"', []), ("[7]", []), ('[7, "/b"]', ["/b"])],
)
def test_stores_that_are_no_list_are_taken_as_not_named(tmp_path: Path, stores: str, found: list[str]) -> None:
    (tmp_path / "config.toml").write_text(f"[run]\nstores = {stores}\n")
    folder = WatchedFolder(tmp_path)
    folder.refresh()
    assert folder.stores == ([Path(each) for each in found] or [tmp_path / "store"])
