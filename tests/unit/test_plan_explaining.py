"""Explanations of runs: remedies and their gains by tables, and a run folder from rows to sentences."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from tests.unit.test_observe_binding import rows, served
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.core.manifest import BlockManifest, Manifest
from luwu.errors import ConfigError
from luwu.launch.folder import RunFolder
from luwu.launch.settings import Settings, build_settings
from luwu.observe.binding import mean_step
from luwu.observe.bounds import Step
from luwu.plan.disk_changes import DiskChanges, Moved
from luwu.plan.explained_run import elements_of, explain_run, lines_of
from luwu.plan.explaining import explain

MIB = 1 << 20


def step_of(*arguments: object, **more: object) -> Step:
    found = mean_step(rows(*arguments, **more))  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize(
    "step, gains",
    [
        (step_of(1.0), {"workers": 2.0, "checkpoint": 4 / 3}),
        (step_of(2.0, data=1.5), {"data": 4.0}),
        (step_of(2.0, others=1.0, rank=1), {"worker": 2.0, "balance": 1.5}),  # both in 4/3 of a second
        (
            step_of(0.5, (0.5, 0.5, 0.5), server=served(states=0.8, disk=(2.0, 2.0))),
            {"memory": 4.0, "disk": 2.0, "batch": 2.0, "states": 1.25},  # never below the own work
        ),
        (  # it writes all the time, and reads half of it
            step_of(0.2, (0.5, 0.5, 0.8), server=served(states=0.8, disk=(1.0, 2.0))),
            {"memory": 1 / 0.3, "disk": 2.0, "batch": 2.0, "states": 1.25},
        ),
        (step_of(1.6, (0.4, 0.0, 0.0), server=served(7.0)), {}),
        (step_of(0.8, (0.2, 0.8, 0.2), server=served(7.0)), {"threads": 2.0, "batch": 2.0}),
        (  # updates have counted less than the waits, which are halved
            step_of(0.5, (0.5, 0.5, 0.0), server=served(0.6, disk=(0.0, 0.0), shared=True)),
            {"threads": 1.5, "batch": 1.5},
        ),
        (step_of(0.4, (1.6, 0.0, 0.0)), {"link": 2.0, "batch": 2.0}),
        (step_of(0.8, (0.0, 0.0, 1.0)), {"link": 2.0, "batch": 2.0}),
        (step_of(2.0, data=2.0), {"data": 100.0}),  # all of the step goes away
        (step_of(2.0, others=0.0, rank=1), {"worker": 100.0, "balance": 100.0}),
        (  # it computes for longer than it waits for the disk, whose waits can go away all the same
            step_of(1.6, (0.1, 0.2, 0.1), server=served(states=0.8, disk=(1.0, 1.0))),
            {"memory": 1.25, "disk": 1.25, "batch": 1.25, "states": 1 / 0.9, "workers": 5 / 3, "checkpoint": 1.25},
        ),
        (  # a disk that moved nothing has no bytes that could be fewer
            step_of(0.0, (0.5, 0.5, 1.0), server={**served(states=0.8), "read_bytes": 0, "written_bytes": 0}),
            {"disk": 2.0, "batch": 2.0},
        ),
    ],
)
def test_gains(step: Step, gains: dict[str, float]) -> None:
    changes = DiskChanges(memory=Moved(0.0, 0.3), memory_bytes=300 * MIB, states=Moved(0.8, 0.8))
    found = explain(step, Settings(), changes)
    if not gains:  # computation binds where the rest is short
        assert [remedy.name for remedy in found.remedies] == ["workers", "checkpoint"]
        return
    assert {remedy.name: remedy.gain for remedy in found.remedies} == pytest.approx(gains)
    assert [remedy.gain for remedy in found.remedies] == pytest.approx(sorted(gains.values(), reverse=True))


def test_a_disk_beside_longer_work_has_no_remedy_that_gains_little() -> None:
    found = explain(step_of(1.92, (0.0, 0.08, 0.0), server=served(states=0.8)), Settings(), DiskChanges())
    assert [remedy.name for remedy in found.remedies] == ["workers", "checkpoint"]


def test_settings_that_a_run_has_already_are_no_remedy() -> None:
    settings = build_settings({"run": {"checkpoint": False, "dtype": "bfloat16", "balance": True}})
    names = {
        remedy.name
        for step in (step_of(1.0), step_of(0.4, (1.6, 0.0, 0.0)), step_of(2.0, others=1.0))
        for remedy in explain(step, settings, DiskChanges()).remedies
    }
    assert names == {"workers", "link", "batch", "worker"}


def test_blocks_of_16_bits_are_a_remedy_on_a_gpu() -> None:
    found = explain(step_of(0.4, (1.6, 0.0, 0.0)), build_settings({"run": {"device": "cuda"}}), DiskChanges())
    assert {remedy.name: remedy.gain for remedy in found.remedies}["dtype"] == pytest.approx(2.0)


def test_bytes_of_a_step_with_other_settings() -> None:
    elements = [1 << 16, *[1 << 20] * 12]
    tight = build_settings({"run": {"memory": 40 * MIB, "workers": 1}})
    changes = DiskChanges.of(tight, elements)
    assert changes.memory.read == 0 and changes.memory.written == pytest.approx(1, rel=0.1)
    assert changes.memory_bytes > 150 * MIB
    assert 0.2 < changes.states.read < 0.7 and 0.2 < changes.states.written < 0.7
    roomy = build_settings({"run": {"memory": changes.memory_bytes, "workers": 1}})
    found = DiskChanges.of(roomy, elements)
    assert found.memory == Moved() and found.durable == (1.0, pytest.approx(0.1, rel=0.1))
    tenth = build_settings({"run": {"memory": changes.memory_bytes, "workers": 1, "durable": "10 steps"}})
    assert DiskChanges.of(tenth, elements).durable == Moved()


def test_blocks_of_a_manifest() -> None:
    blocks = tuple(BlockManifest(name, True, (), count) for name, count in (("a", 5), ("<root>", 3), ("b", 7)))
    assert elements_of(Manifest("float32", 1 << 18, blocks)) == [3, 5, 7]


def made_run(folder: Path, steps: list[dict[str, object]]) -> Path:
    run = RunFolder(folder)
    run.save_settings(build_settings({"run": {"workers": 1, "batch": 8}}))
    run.metrics_path.write_text("".join(f"{json.dumps(row)}\n" for row in steps))
    return folder


def test_a_run_folder_is_explained(tmp_path: Path) -> None:
    folder = made_run(tmp_path, rows(0.5, (1.0, 0.5, 0.0), count=12))
    assert list(lines_of(explain_run(folder))) == [
        "from 9 steps only, of 2 s in the mean, 512 tokens/s",
        "67 % of a step waits for parameters on their way (1.33 s of 2 s; 2 GB/s)",
        "computation takes 25 % of a step (500 ms of 2 s)",
        "8 % of a step waits for gradients on their way, or for the step's end (167 ms of 2 s; 500 MB/s)",
        "what would help:",
        "  2.00x  a link of twice the rate",
        "  2.00x  a batch of twice the size, in a new run (--batch 16)",
    ]
    told = CliRunner().invoke(app, ["explain", str(folder), "--json"])
    assert told.exit_code == 0
    found = json.loads(told.stdout)
    assert found["binds"] == "pull" and found["server"] is None and found["steps"] == 9
    assert found["parts"][0]["share"] == pytest.approx(2 / 3)
    assert found["remedies"][0]["gain"] == pytest.approx(2.0)


def test_ten_steps_are_not_few(tmp_path: Path) -> None:
    found = explain_run(made_run(tmp_path, rows(0.5, (1.0, 0.5, 0.0), count=13)))
    assert next(lines_of(found)) == "10 steps of 2 s in the mean, 512 tokens/s"


@pytest.mark.parametrize(
    "steps, problem",
    [
        ([], "expected two steps or more in metrics.jsonl, found none; wait for the first ones"),
        (rows(1.0, count=0), "found 1 step; wait for the first ones"),
        (
            [{**row, "committed": False} for row in rows(1.0)],
            "found none, and 6 attempts that made no step; if it stays so, lower",
        ),
        ([*rows(1.0, count=0), {"attempt": 1, "step": 1, "committed": False}], "1 step, and 1 attempt that made no"),
        ([{**row, "slowest": 7} for row in rows(1.0)], "rows of older versions and damaged ones do not tell"),
    ],
)
def test_runs_without_steps_that_tell_are_refused(tmp_path: Path, steps: list[dict[str, object]], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        explain_run(made_run(tmp_path, steps))


SLOWEST = {"rank": 0, "own_seconds": 9.0, "data_seconds": 0.0, "others_seconds": None, "wait_seconds": [0.0, 0.0, 0.0]}


@pytest.mark.parametrize(
    "damage",
    [
        {"slowest": 7},
        {"slowest": "x"},
        {"slowest": {"rank": 0}},
        {"slowest": {**SLOWEST, "rank": [1]}},
        {"slowest": {**SLOWEST, "wait_seconds": []}},
        {"slowest": {**SLOWEST, "wait_seconds": [1.0, None, 1.0]}},
        {"slowest": {**SLOWEST, "own_seconds": float("nan")}},
        {"slowest": {**SLOWEST, "others_seconds": "x"}},
        {"slowest": {**SLOWEST, "data_seconds": 10.0}},
        {"server": [1]},
        {"server": {**served(), "threads": 0}},
        {"server": {**served(), "read_seconds": None}},
        {"server": {**served(), "written_bytes": -1}},
        {"tokens": None},
        {"tokens": 10**399},
        {"tokens": True},
        {"seconds": "fast"},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": 0.0},
        {"seconds": 5e-324},
        {"seconds": -1},
    ],
)
def test_damaged_rows_are_left_out(tmp_path: Path, damage: dict[str, object]) -> None:
    whole = rows(0.5, (1.0, 0.5, 0.0), count=12)
    expected = explain_run(made_run(tmp_path, whole))
    step = [{**row, **damage} if row["step"] == 12 else row for row in rows(0.5, (1.0, 0.5, 0.0), count=14)]
    found = explain_run(made_run(tmp_path, step))
    assert found.step == expected.step._replace(steps=10) and found.bounds == expected.bounds
    with pytest.raises(ConfigError, match="damaged ones do not tell"):
        explain_run(made_run(tmp_path, [{**row, **damage} for row in whole]))


@pytest.mark.parametrize("damage", ["x", None, -1, 10**399])
def test_bytes_that_are_none_are_not_counted(tmp_path: Path, damage: object) -> None:
    told = rows(0.5, (1.0, 0.5, 0.0), count=12)
    damaged = [{**row, "bytes_pulled": damage} if row["step"] == 12 else row for row in told]
    damaged[8] = {name: value for name, value in damaged[8].items() if name != "bytes_pushed"}
    assert explain_run(made_run(tmp_path, damaged)) == explain_run(made_run(tmp_path, told))


def test_a_metrics_file_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = RunFolder(made_run(tmp_path, [])).metrics_path
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=r"metrics.jsonl: expected a file, found a pipe or a device"):
        explain_run(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match=r"metrics.jsonl: expected a file, found a folder"):
        explain_run(tmp_path)
    path.rmdir()
    path.write_text("")

    def refuse(*arguments: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=r"metrics.jsonl: expected rows of a run, found Permission denied"):
        explain_run(tmp_path)


def test_a_run_folder_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(ConfigError, match="expected a run folder, found one that cannot be read: Permission denied"):
        explain_run(tmp_path)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["explain", str(tmp_path / "none")])
    assert told.exit_code == 2 and "expected the folder of a run, found no such folder" in told.stderr
    told = CliRunner().invoke(app, ["explain", str(tmp_path)])
    assert told.exit_code == 2 and "expected the folder of a run, found no config.toml in it" in told.stderr
