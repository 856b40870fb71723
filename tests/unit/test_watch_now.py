"""`luwu watch` says how far a run is by the run's own steps, and what its last rows amount to."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_watch_runs import status, watched, write_alert

from luwu.control import control_pb2 as pb
from luwu.core.errors import NotUnderWayError
from luwu.store.run_record import Claim, Counts, RunRecord, claim_store
from luwu.watch import runs as watch_runs
from luwu.watch.pace import Pace, pace_of
from luwu.watch.pages import json_text
from luwu.watch.runs import Cursor, WatchedRun
from luwu.watch.terminal import text_of
from luwu.watch.wear import writes_of_rows


def write_rows(folder: Path, *rows: dict[str, Any]) -> None:
    """Write rows of a run; what they do not name is that of an ordinary step."""
    folder.mkdir(exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        for attempt, row in enumerate(rows):
            file.write(
                json.dumps({"attempt": attempt, "step": attempt + 1, "committed": True, "loss": 2.0} | row) + "\n"
            )


def begin_in_store(store: Path, run_id: str, step: int) -> None:
    """Have a run begin in the store of an earlier one, which has trained it to a step."""
    store.mkdir(parents=True)
    counts = Counts(step, step, 0)
    claim_store(store, Claim(RunRecord("earlier", "runs/earlier")), Counts(), imported=False)
    claim_store(store, Claim(RunRecord(run_id, "runs/it"), takes_weights=True), counts, imported=False)


@pytest.mark.parametrize("here", [True, False])  # the store's folder may be another machine's
def test_the_steps_of_a_new_run_in_an_old_store_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    write_rows(tmp_path, {}, {}, {"step": None})
    (tmp_path / "config.toml").write_text("[run]\nsteps = 9\n")
    (tmp_path / "run-id").write_text("it\n")
    if here:
        begin_in_store(tmp_path / "store", "it", 3000)
    reply = status(unwritten=1)
    reply.step = 3002
    run = watched(tmp_path, monkeypatch, reply)
    run.refresh()
    assert (run.state["step"], run.state["durable_step"]) == (2, 1)
    assert "step 2 of 9" in text_of([run]) and "last on the disk: step 1," in text_of([run])
    assert run.update(Cursor())[0]["state"]["step"] == 2


def test_a_run_that_has_not_begun_in_another_ones_store_has_no_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_in_store(tmp_path / "store", "other", 3000)
    (tmp_path / "run-id").write_text("it\n")
    run = watched(tmp_path, monkeypatch, status())
    run.refresh()
    assert run.state["step"] == 0


def test_figures_of_now_are_sums_over_the_time_of_the_last_20_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, fast, slow = (
        {"tokens": 100, "seconds": seconds, "tokens_per_second": 100 / seconds, "hidden": hidden}
        for seconds, hidden in ((0.001, 1.0), (0.1, 1.0), (10.0, 0.0))
    )
    unreported = {"tokens": 100, "seconds": None, "tokens_per_second": None, "hidden": None}
    write_rows(tmp_path, old, *[fast] * 19, slow)
    run = watched(tmp_path, monkeypatch, NotUnderWayError("none"))
    run.refresh()
    pace = run.update(Cursor())[0]["pace"]
    assert pace == pytest.approx({"tokens_per_second": 2000 / 11.9, "seconds": 11.9 / 20, "hidden": 1.9 / 11.9})
    assert "tokens/s 168" in text_of([run])
    assert pace_of([fast, unreported, slow]) == pytest.approx((200 / 10.1, 5.05, 0.1 / 10.1))
    assert pace_of([]) == pace_of([unreported, {"seconds": math.inf}]) == Pace()


def test_what_a_step_writes_is_that_of_the_last_20_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [{"seconds": 1.0, "server": {"written_bytes": written}} for written in (10**9, *[500] * 20)]
    write_rows(tmp_path, *told)
    (tmp_path / "store").mkdir()
    (tmp_path / "written.json").write_text('{"bytes": 100}')
    run = watched(tmp_path, monkeypatch, NotUnderWayError("none"))
    run.refresh()
    assert run.wear is not None and run.wear["stores"][0]["step_bytes"] == 500


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{}, {}], "after step 2 of 9, and goes on from there when it is started again"),
        ([{}] * 9, "after all of its 9 steps"),
        ([], ""),
    ],
)
def test_a_run_that_has_failed_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], words: str
) -> None:
    write_rows(tmp_path, *rows)
    (tmp_path / "config.toml").write_text("[run]\nsteps = 9\n")
    write_alert(tmp_path, "slow_steps", "raised", 150.0)
    write_alert(tmp_path, "run_failed", "raised", 150.0)
    run = watched(tmp_path, monkeypatch, NotUnderWayError("none"))
    run.refresh()
    state = run.update(Cursor())[0]["state"]
    assert state["ended"] and state["alerts"] == [
        "since step 3: slow_steps is raised", "run_failed is raised"
    ]  # fmt: skip
    assert state["why"].endswith(words)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(150.0))  # and not when the rows were copied here
    assert state["why"].startswith(f"failed on {when} " if rows else "has failed; its folder tells no steps")
    assert text_of([run]).endswith("\n  since step 3: slow_steps is raised\n  run_failed is raised")


def test_damaged_rows_and_settings_keep_no_run_from_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"seconds": 1.0, "tokens": 100, "server": {"written_bytes": 500}}
    write_rows(tmp_path, whole, whole | {"server": {"written_bytes": math.inf}}, whole | {"seconds": math.inf})
    write_rows(tmp_path, *[whole | {"seconds": 1e308, "server": {"written_bytes": 1e308}}] * 2)
    (tmp_path / "config.toml").write_text('[run]\nstores = ["a\\u0000b", "store"]\n')
    (tmp_path / "run-id").write_text("it\n")
    (tmp_path / "written.json").write_text('{"bytes": 100}')
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    for answer in (NotUnderWayError("none"), status(figures={"luwu_server_memory_bytes": math.inf})):
        run = watched(tmp_path, monkeypatch, answer)
        run.refresh()
        record, _ = run.update(Cursor())
        told = json.loads(json_text(record), parse_constant=pytest.fail)
        assert told["rows"]["step"] == [1, 2, 3, 1, 2] and len(told["wear"]["stores"]) == 1
        assert text_of([run])
    assert told["state"]["server_memory_bytes"] is None and told["state"]["workers"] == 2


def test_a_record_for_the_page_has_no_number_that_a_browser_refuses() -> None:
    record = {"a": [1.5, math.inf], "b": {"c": (-math.inf, math.nan, "x", None, True)}}
    assert json.loads(json_text(record)) == {"a": [1.5, None], "b": {"c": [None, None, "x", None, True]}}


def test_what_a_step_writes_is_of_rows_whose_counts_are_finite() -> None:
    rows = [{"seconds": 2.0, "server": {"written_bytes": written}} for written in (10, math.inf, 30)]
    assert writes_of_rows([*rows, {"seconds": math.inf, "server": {"written_bytes": 99}}]) == (20.0, 2.0)


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ({"loss": None, "seconds": 1.0, "committed": False}, "loss not finite  norm 1"),
        ({"loss": None, "seconds": None, "committed": None}, "loss 2  norm 1"),  # nobody reported it
        ({"loss": 3.0, "seconds": 1.0}, "loss 3  norm 1"),
    ],
)
def test_a_loss_that_is_not_finite_is_said_to_be_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], word: str
) -> None:
    write_rows(tmp_path, {"seconds": 1.0, "grad_norm": 1.0}, row)
    run = watched(tmp_path, monkeypatch, NotUnderWayError("none"))
    run.refresh()
    assert f"  {word}" in text_of([run])
    assert run.update(Cursor())[0]["loss_is_finite"] is ("not" not in word)


def test_rates_are_by_the_time_of_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slow = 0.0, iter((0.0, 3.0, 0.0))

    def answer(*_: object, **__: object) -> pb.StatusReply:
        nonlocal now
        now += next(slow)
        return status(figures={"luwu_server_pulled_bytes_total": 1e6 * now})

    monkeypatch.setattr(watch_runs, "ask_run", answer)
    run = WatchedRun("luwu://localhost:7", clock=lambda: now)
    run.refresh()
    for _ in range(2):
        now += 1.0
        run.refresh()
        assert run.state["traffic"]["pulled"] == 1e6
