"""The part that binds a run's steps, by tables of rows as `luwu train` writes them."""

from __future__ import annotations

from typing import Any

import pytest

from luwu.launch.words import checked_report
from luwu.observe.binding import binding_sentence, mean_step
from luwu.observe.bounds import Part, bounds_of, short_of
from luwu.observe.meter import served_between, slowest_of

GB = 10**9


def rows(
    own: float = 1.0,
    waits: tuple[float, float, float] = (0.0, 0.0, 0.0),
    *,
    data: float = 0.0,
    others: float | None = None,
    rank: int = 0,
    server: dict[str, Any] | None = None,
    count: int = 5,
) -> list[dict[str, Any]]:
    """Return rows of equal steps, after one that tells nothing."""
    seconds = own + sum(waits)
    slowest = {
        "rank": rank, "own_seconds": own, "data_seconds": data, "others_seconds": others, "wait_seconds": list(waits)
    }  # fmt: skip
    return [
        {
            "step": number, "attempt": number, "committed": True, "seconds": seconds, "tokens": 1024,
            "bytes_pulled": number * 4 * GB, "bytes_pushed": number * GB,
            **({"slowest": slowest, "server": server} if number else {}),
        }
        for number in range(count + 1)
    ]  # fmt: skip


def served(
    updating: float = 0.0,
    pulls: float = 0.0,
    states: float = 0.0,
    *,
    disk: tuple[float, float] = (1.0, 1.0),
    shared: bool = False,
) -> dict[str, Any]:
    return {
        "read_bytes": 2 * GB, "written_bytes": GB, "update_seconds": updating, "threads": 4, "pulls_waited": pulls,
        "states_waited": states, "read_seconds": disk[0], "write_seconds": disk[1], "shared_memory": shared,
    }  # fmt: skip


@pytest.mark.parametrize(
    "found, parts, sentence",
    [
        (rows(1.9, (0.1, 0.0, 0.0)), [Part.COMPUTE, Part.PULL], "computation takes 95 % of a step (1.9 s of 2 s)"),
        (
            rows(2.0, data=1.5), [Part.DATA, Part.COMPUTE], "making batches takes 75 % of a step (1.5 s of 2 s)"
        ),
        (
            rows(3.0, others=1.0, rank=2), [Part.WORKER, Part.COMPUTE],
            "the others wait for worker 2 in 67 % of a step (2 s of 3 s)",
        ),
        (
            rows(0.5, (0.5, 0.5, 0.5), server=served(updating=1.0, states=0.8)), [Part.DISK, Part.COMPUTE],
            "75 % of a step waits for the disk (1.5 s of 2 s; it reads 1 GB/s and writes 500 MB/s)",
        ),
        (
            rows(0.5, (0.5, 1.0, 0.0), server=served(updating=6.0, states=0.8)), [Part.UPDATE, Part.COMPUTE],
            "75 % of a step waits for the server's updates (1.5 s of 2 s; they take 75 % of the time of 4 threads)",
        ),
        (
            rows(0.5, (1.0, 0.5, 0.0), server=served()), [Part.PULL, Part.COMPUTE, Part.PUSH],
            "67 % of a step waits for parameters on their way (1.33 s of 2 s; 2 GB/s)",
        ),
        (
            rows(0.5, (0.0, 0.3, 1.2)), [Part.PUSH, Part.COMPUTE, Part.PULL],
            "65 % of a step waits for gradients on their way, or for the step's end (1.3 s of 2 s; 500 MB/s)",
        ),
    ],
)  # fmt: skip
def test_what_binds(found: list[dict[str, Any]], parts: list[Part], sentence: str) -> None:
    step = mean_step(found)
    assert step is not None
    assert [bound.part for bound in bounds_of(step)] == parts
    assert binding_sentence(found) == sentence


def test_rows_that_do_not_tell() -> None:
    assert binding_sentence([]) == ""
    assert binding_sentence(rows(count=0)) == ""
    old = [{name: value for name, value in row.items() if name not in ("slowest", "server")} for row in rows()]
    assert binding_sentence(old) == ""
    rolled_back = [{**row, "committed": False} for row in rows(9.0)]
    assert binding_sentence([*rolled_back, *rows(1.0)]).endswith("(1 s of 1 s)")
    unknown = [{**rows()[0], "bytes_pulled": None, "bytes_pushed": None}, *rows()[1:]]
    assert binding_sentence(unknown)


def test_the_last_steps_count_alone_and_a_new_start_counts_bytes_anew() -> None:
    assert binding_sentence([*rows(9.0, count=50), *rows(1.0, count=20)]).endswith("(1 s of 1 s)")
    again = [*rows(), *rows()]
    step = mean_step(again)
    assert step is not None and step.pulled_bytes == 4 * GB and step.steps == 10


def test_workers_that_are_slower_in_turn_are_not_slow() -> None:
    first, second = rows(3.0, others=1.0, rank=0), rows(3.0, others=1.0, rank=1)
    step = mean_step([first[number] if number % 2 else second[number] for number in range(5)])
    assert step is not None and step.excess == 0.0 and bounds_of(step)[0].part is Part.COMPUTE


def report(ended: float, waited: float, **more: Any) -> Any:
    return {"began": 10.0, "ended": ended, "waited_seconds": waited, **more}


def test_the_slowest_worker_of_an_attempt() -> None:
    waits = {"data_seconds": 0.25, "waits": (0.5, 0.25)}
    reports = {
        0: report(14.0, 3.0, **waits), 1: report(14.0, 1.0, **waits), 2: report(14.0, 2.0, **waits),
        3: report(13.5, 3.0, **waits),
    }  # fmt: skip
    assert slowest_of(reports) == {
        "rank": 1, "own_seconds": 3.0, "data_seconds": 0.25, "others_seconds": 1.0, "wait_seconds": [0.5, 0.25, 0.25]
    }  # fmt: skip
    alone = slowest_of({2: reports[2]})
    assert alone is not None and alone["others_seconds"] is None and alone["rank"] == 2
    assert slowest_of({**reports, 4: report(14.0, 0.0)}) is None  # of an older version


def test_counts_of_a_server_between_two_looks() -> None:
    before = {
        "bytes_read": 10, "bytes_written": 20, "update_seconds": 1.0, "pulls": 8, "pulls_waited": 2,
        "chunks_updated": 4, "states_waited": 0, "read_seconds": 0.0, "write_seconds": 1.0,
    }  # fmt: skip
    now = {
        "bytes_read": 15, "bytes_written": 30, "update_seconds": 1.5, "pulls": 12, "pulls_waited": 3,
        "chunks_updated": 4, "states_waited": 0, "read_seconds": 0.0, "write_seconds": 1.0,
    }  # fmt: skip
    assert served_between(before, now, 2, shared_memory=True) == {
        "read_bytes": 5, "written_bytes": 10, "update_seconds": 0.5, "threads": 2, "pulls_waited": 0.25,
        "states_waited": 0.0, "read_seconds": 0.0, "write_seconds": 0.0, "shared_memory": True,
    }  # fmt: skip
    assert served_between({}, now, 2, shared_memory=True) is None
    assert served_between(before, {}, 2, shared_memory=True) is None
    assert served_between(now, before, 2, shared_memory=True) is None  # another start


def test_a_report_may_tell_its_waits() -> None:
    words = {
        "kind": "step", "attempt": 0, "step": 1, "committed": True, "loss": 1.0, "sequences": 1, "tokens": 1, "lr": 1.0,
        "grad_norm": None, "began": 0.0, "ended": 1.0, "waited_seconds": 0.5, "busy_seconds": 0.5, "bytes_pulled": 1,
        "bytes_pushed": 1, "data_seconds": 0.1, "waits": [0.1, 0.2],
    }  # fmt: skip
    assert checked_report(0, words)["waits"] == [0.1, 0.2]
    for wrong in ([0.1], "no", [0.1, -1.0], [0.1, float("nan")]):
        with pytest.raises(Exception, match="waits"):
            checked_report(0, {**words, "waits": wrong})


@pytest.mark.parametrize(
    "part, short",
    [
        (served(updating=4.0), Part.UPDATE),  # half of four threads
        (served(updating=4.0, disk=(0.0, 2.0), pulls=0.5), Part.UPDATE),
        (served(disk=(1.7, 0.0)), Part.DISK),
        (served(disk=(0.0, 1.7)), Part.DISK),
        (served(disk=(0.5, 0.5)), None),
        (served(disk=(0.5, 0.5), shared=True), Part.DISK),
        (served(updating=1.0, disk=(0.5, 0.5), shared=True), Part.UPDATE),
        (served(updating=0.1, disk=(0.5, 0.5), pulls=0.1), Part.DISK),
        (served(updating=0.1, disk=(0.5, 0.5), states=0.1), Part.DISK),
        (served(updating=0.1, disk=(0.5, 0.5), states=0.09, pulls=0.09), None),
        (served(updating=1.0, disk=(0.5, 0.5), pulls=0.5), None),
    ],
)
def test_what_the_server_is_short_of(part: dict[str, Any], short: Part | None) -> None:
    step = mean_step(rows(0.5, (1.5, 0.0, 0.0), server=part))
    assert step is not None and short_of(step.served) is short


def test_counts_of_a_server_in_rows_of_an_older_version_are_left_out() -> None:
    part = {name: value for name, value in served(states=0.8).items() if name != "read_seconds"}
    step = mean_step(rows(0.5, (1.5, 0.0, 0.0), server=part))
    assert step is not None and step.served is None


def test_no_part_of_a_step_is_longer_than_the_step() -> None:
    told = rows(2.0, (1.0, 0.5, 0.5), server=served(pulls=1.0))
    late = [{**row, "seconds": 3.5} for row in told]  # the slowest worker began before the last answer to another
    step = mean_step(late)
    assert step is not None and step.seconds == 4.0
    assert sum(bound.seconds for bound in bounds_of(step)) <= step.seconds


def test_a_long_step_counts_by_its_time() -> None:
    """Nine steps of 0.1 s, and one of 10 s that alone writes, for 9.9 s of it."""
    quick, slow = rows(0.05, (0.01, 0.01, 0.03), count=9), rows(0.05, (0.01, 0.01, 9.93), count=10)[-1:]
    for row in (*quick[1:], *slow):
        waited = 1.0 if row in slow else 0.0
        row["server"] = served(0.04, disk=(0.0, 9.9 * waited), states=waited) | {"threads": 2, "written_bytes": waited}
    step = mean_step([*quick, *slow])
    assert step is not None and step.served is not None
    assert step.served.writing == pytest.approx(9.9 / 10.9)  # of all ten steps' seconds, not the mean of their shares
    assert step.served.updating == pytest.approx(0.4 / 21.8)
    assert step.served.states_waited == pytest.approx(9.95 / 10.4) and step.served.written_bytes == 0.1
    assert bounds_of(step)[0].part is Part.DISK


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_what_was_waited_for_counts_by_the_waits_where_there_are_some(seconds: float) -> None:
    without = rows(1.0, (0.0, 0.0, 0.0), server=served(pulls=0.0), count=1)
    waiting = rows(1.0, (seconds, 0.0, 0.0), server=served(pulls=0.5), count=1)
    step = mean_step([*without, *waiting[1:]])
    assert step is not None and step.served is not None and step.served.pulls_waited == (0.5 if seconds else 0.25)
