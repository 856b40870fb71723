from __future__ import annotations

import io
import math
import os
import time
import tracemalloc
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.test_observe_meter import report

from luwu.observe.display import LiveDisplay, PlainDisplay, choose_display, duration, figures
from luwu.observe.meter import Meter, StepRecord
from luwu.observe.metrics import LONGEST_ROW_BYTES, MetricsLog, read_metrics
from luwu.observe.plots import draw_loss, draw_throughput


def record(step, loss=2.0, committed=True, grad_norm=None):
    return StepRecord(step, step, committed, loss, 0.1, grad_norm, 64, 0.5, 128.0, 0.9, 1000, 500)


def meter_at(step, steps=10):
    meter = Meter(workers=1, steps=steps)
    meter.add(0, report(step - 1))
    return meter


def write_rows(path, count):
    log = MetricsLog(path)
    for attempt in range(count):
        log.append(record(attempt))
    log.close()
    return path


def test_rows_past_the_store_are_cut_off(tmp_path):
    path = write_rows(tmp_path / "metrics.jsonl", 5)
    with path.open("a") as file:
        file.write('{"step": 5, "att')  # killed while writing
    log = MetricsLog(path)
    log.resume(3, 3, {})
    log.append(record(3, loss=math.nan, grad_norm=math.inf))
    log.append(record(4, grad_norm=0.5))
    log.close()
    rows = read_metrics(path)
    assert [row["attempt"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["grad_norm"] for row in rows] == [None, None, None, None, 0.5]
    assert rows[3]["loss"] is None


def test_damaged_lines_are_left_out_kept_beside_and_said(tmp_path):
    path = write_rows(tmp_path / "metrics.jsonl", 6)
    lines = path.read_bytes().split(b"\n")
    lines[1:4] = [b"x", b"123", b'{"attempt": 3, "step": "\xff"}']
    damaged = b"\n".join(lines)
    path.write_bytes(damaged)
    log = MetricsLog(path)
    word = log.resume(6, 6, {})
    log.close()
    assert word == f"{path}: 3 lines could not be read and were left out; see {path}.damaged"
    assert Path(f"{path}.damaged").read_bytes() == damaged
    rows = read_metrics(path)
    assert [row["attempt"] for row in rows] == list(range(6))
    assert [row["loss"] is None for row in rows] == [False, True, True, True, False, False]
    assert MetricsLog(path).resume(6, 6, {}) == ""


def test_a_validation_after_the_last_report_is_written_into_its_row(tmp_path):
    path = write_rows(tmp_path / "metrics.jsonl", 3)
    log = MetricsLog(path)
    log.append(record(2, committed=False))
    log.note_validation(2, 1.5)
    log.append(record(3))
    log.close()
    assert [row.get("validation_loss") for row in read_metrics(path)] == [None, None, 1.5, None, None]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_an_end_takes_bounded_memory(tmp_path, end):
    path = write_rows(tmp_path / "metrics.jsonl", 3)
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + 16 * LONGEST_ROW_BYTES)
        file.seek(0, os.SEEK_END)
        file.write(end + b'{"attempt": 3, "step": 4}' if end else b"")
    tracemalloc.start()
    rows = read_metrics(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [row["attempt"] for row in rows] == [0, 1, 2, *([3] if end else [])]
    assert most < 5 * LONGEST_ROW_BYTES


def test_no_metrics_are_no_rows(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_plain_lines_have_no_control_codes():
    stream = io.StringIO()
    console = Console(file=stream)
    with choose_display(console, 10) as display:
        assert isinstance(display, PlainDisplay)
        display.stage("training")
        display.stage("training", "more")
        for step in range(1, 11):
            display.step(meter_at(step), {"bytes_read": 2000, "bytes_written": 3_000_000})
        display.say("[bold]as it is[/]")
    text = stream.getvalue()
    assert "\x1b" not in text and "\r" not in text
    assert text.count("training") == 1
    assert text.count("tokens/s") == 2  # the first line at once, the next ones seconds later, the last in any case
    assert "step 10/10  loss 2.000" in text
    assert "store read 2 kB  store written 3 MB" in text
    assert "[bold]as it is[/]" in text


def test_plain_lines_say_every_few_seconds_how_far_a_stage_is(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = io.StringIO()
    display = PlainDisplay(Console(file=stream))
    for done in range(13):
        display.stage("writing a sample", f"{done} of 400 tokens")
        now += 1.0
    display.stage("writing a sample")
    display.stage("done")
    said = ["writing a sample", "writing a sample 5 of 400 tokens", "writing a sample 10 of 400 tokens", "done"]
    assert stream.getvalue().splitlines() == said


def test_the_panel_shows_every_figure():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with choose_display(console, 10) as display:
        assert isinstance(display, LiveDisplay)
        display.stage("training")
        meter = meter_at(5)
        meter.rolled_back = 2
        display.step(meter, {"bytes_read": 0, "bytes_written": 0})
        display.alerts({"loss_rising": "the loss rises"})
        display.say("a line that stays")
    text = console.file.getvalue()
    for word in (
        "50 %",
        "alert: the loss rises",
        "step",
        "5/10",
        "loss",
        "pulled",
        "pushed",
        "read",
        "written",
        "hidden",
        "rolled back",
    ):
        assert word in text
    assert "left" in dict(figures(meter, {})) and "left" not in text  # the panel that stays has no time left


def test_the_last_step_on_the_disk_is_the_runs_own():
    meter = meter_at(7)
    meter.first_step = 3000  # of the store, by an earlier run
    server = {"bytes_read": 0, "bytes_written": 0, "unwritten": 3, "step": 3007, "since_commit_seconds": 1.0}
    shown = dict(figures(meter, server))
    assert (shown["step"], shown["last on the disk"]) == ("7/10", "step 4, 1 s ago")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.4, "59s"), (60, "1m00s"), (3599.9, "1h00m"), (7380, "2h03m")]
)
def test_durations_in_words(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("steps", [1, 2, 300])
def test_pictures_are_drawn(tmp_path, suffix, steps):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(steps):
        log.append(record(step, loss=math.nan if step == 1 else 5.0 / (step + 1), committed=step != 1))
    log.close()
    rows = read_metrics(log.path)
    loss, throughput = tmp_path / f"loss.{suffix}", tmp_path / f"throughput.{suffix}"
    draw_loss(rows, loss, 1.5, 3.2)
    draw_throughput(rows, throughput)
    for picture in (loss, throughput):
        assert picture.read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_nothing_is_drawn_of_nothing(tmp_path):
    draw_loss([], tmp_path / "loss.png", None, 3.2)
    draw_throughput([], tmp_path / "throughput.png")
    assert not list(tmp_path.iterdir())
