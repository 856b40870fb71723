"""`luwu watch` looks at long files in pieces, at several runs at once, and says what is damaged."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from luwu.control import control_pb2 as pb
from luwu.core.errors import LuwuError, ServerError
from luwu.watch import folder as watch_folder
from luwu.watch import runs as watch_runs
from luwu.watch import tails
from luwu.watch.looks import RATE_SECONDS, Looks, in_thread
from luwu.watch.runs import Cursor, WatchedRun
from luwu.watch.terminal import text_of

ROWS = 100


def write_long(folder: Path) -> None:
    rows = [{"attempt": at, "step": at + 1, "committed": True, "loss": 2.0} for at in range(ROWS)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))


def read_slowly(monkeypatch: pytest.MonkeyPatch, answer: pb.StatusReply | LuwuError) -> list[str]:
    """Have a look read two reads of 300 bytes each; returns a list of all questions to servers, as they come."""
    asked: list[str] = []

    def ask(where: str, *_: object, **__: object) -> pb.StatusReply:
        asked.append(where)
        if isinstance(answer, LuwuError):
            raise answer
        return answer

    monkeypatch.setattr(watch_runs, "ask_run", ask)
    monkeypatch.setattr(tails, "READ_BYTES", 300)
    monkeypatch.setattr(watch_folder, "READS", 2)
    return asked


def slow_run(folder: Path) -> WatchedRun:
    times = iter(range(10_000))  # a second is over after two pieces
    return WatchedRun(str(folder), clock=lambda: float(next(times)))


def test_a_long_file_is_told_once_it_is_read_and_until_then_how_much_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_long(tmp_path)
    (tmp_path / "a.log").write_text("hello\n")
    read_slowly(monkeypatch, pb.StatusReply(step=7))
    run, cursor, shares = slow_run(tmp_path), Cursor(), []
    run.refresh()
    assert "metrics.jsonl is being read: " in text_of([run])
    while run.reading is not None:
        record, cursor = run.update(cursor)
        assert record["anew"] and record["rows"]["step"] == []
        assert record["state"]["step"] == 7 and record["log"]  # what is known is told
        shares.append(record["reading"])
        run.refresh()
    assert len(shares) > 2 and shares == sorted(set(shares)) and 0 < shares[0] < shares[-1] <= 1
    record, cursor = run.update(cursor)
    assert record["anew"] and record["reading"] is None and record["rows"]["step"] == list(range(1, ROWS + 1))
    assert not run.update(cursor)[0]["anew"]


def test_a_server_that_does_not_answer_holds_no_reading_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_long(tmp_path)
    asked = read_slowly(monkeypatch, ServerError("it does not answer"))
    run = slow_run(tmp_path)
    run.refresh()
    assert run.state["why"] == "it does not answer" and len(asked) == 1
    while run.reading is not None:
        assert len(asked) == 1
        run.refresh()
    assert len(asked) == 2 and len(run.recent) > 0


def test_a_file_is_read_for_a_second_before_the_server_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_long(tmp_path)
    asked = read_slowly(monkeypatch, pb.StatusReply())
    run = WatchedRun(str(tmp_path), clock=lambda: 0.0)  # no time passes
    run.refresh()
    assert run.reading is None and len(asked) == 1


class FakeRun:
    """A run whose look waits until it may go on. ``looks``: number of looks that have begun."""

    where = "fake"
    reading = None

    def __init__(self, wait: threading.Barrier | threading.Event) -> None:
        self._wait = wait
        self.begun = threading.Event()
        self.looks = 0

    def refresh(self) -> None:
        self.looks += 1
        self.begun.set()
        self._wait.wait(60)


def test_runs_are_looked_at_at_once() -> None:
    together = threading.Barrier(3)
    runs = [FakeRun(together) for _ in range(3)]
    Looks().look(runs, 60.0)  # type: ignore[arg-type]
    assert not together.broken and [run.looks for run in runs] == [1, 1, 1]


def test_a_look_that_has_not_ended_by_the_deadline_is_left_alone() -> None:
    go_on = threading.Event()
    run, looks = FakeRun(go_on), Looks()
    looks.look([run], 0.0)  # type: ignore[list-item]
    assert run.begun.wait(60)
    looks.look([run], 0.0)  # type: ignore[list-item]
    assert run.looks == 1
    go_on.set()
    looks.look([run], 60.0)  # type: ignore[list-item]
    looks.look([run], 60.0)  # type: ignore[list-item]
    assert run.looks in (2, 3)


def test_all_of_a_long_file_is_read_where_it_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_long(tmp_path)
    read_slowly(monkeypatch, ServerError("it does not answer"))
    run = slow_run(tmp_path)
    Looks().look_at_all([run], 60.0)
    assert f"step {ROWS}" in text_of([run])


def test_runs_under_way_are_looked_at_twice_for_their_rates() -> None:
    class Counted(FakeRun):
        def __init__(self, live: bool) -> None:
            super().__init__(threading.Event())
            self._wait.set()  # type: ignore[union-attr]
            self.state = {"live": live}

    live, ended, waits = Counted(live=True), Counted(live=False), list[float]()
    Looks().look_for_rates([live, ended], waits.append)  # type: ignore[list-item]
    assert (live.looks, ended.looks, waits) == (2, 1, [RATE_SECONDS])


def test_an_error_of_a_look_comes_to_whoever_waits_for_it() -> None:
    def fail() -> None:
        raise LookupError

    async def look() -> None:
        await in_thread(fail)

    with pytest.raises(LookupError):
        asyncio.run(look())


def test_a_damaged_job_is_said_to_be_damaged(tmp_path: Path) -> None:
    write_long(tmp_path)
    run = WatchedRun(str(tmp_path))
    run.refresh()
    assert run.state["ended"] and run.state["why"].endswith(f"after step {ROWS}")
    (tmp_path / "job.json").write_text("{")
    run.refresh()
    why = run.state["why"]
    assert why.startswith(f"{tmp_path}/job.json: the file: Invalid JSON") and why.endswith("which writes the file")
    (tmp_path / "job.json").write_text('{"folder": 3}')
    run.refresh()
    assert "job.json: settings: Field required" in run.state["why"]
