"""`--json`: one value alone on standard output, with the keys of docs/json.md and the facts of the text."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from tests.documented_keys import check_keys, documented
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.cli.terminal import say_json
from luwu.control import control_pb2 as pb
from luwu.core.exits import Exit
from luwu.data.bpe import TrainedTokenizer
from luwu.observe.bounds import Bound, Part, Step
from luwu.plan.explaining import Explanation, Remedy
from luwu.probe.machine import Finding
from luwu.store.dcp_output import DcpReport
from luwu.store.exporting import ExportReport
from luwu.store.importing import ImportReport
from luwu.store.snapshots import SnapshotInfo
from luwu.store.standby_record import StandbyRecord
from luwu.store.upkeep import FolderUse, StoreInfo
from luwu.store.verifying import VerifyReport

NOON = datetime(2026, 11, 29, 12, 0, 5, tzinfo=timezone.utc)
INFO = StoreInfo(
    uuid="ab12", model=("GPT2LMHeadModel",), run=None, dtype="bfloat16", trainable=1001, frozen=202, blocks=3, chunks=4,
    optimizer="adamw", optimizer_states=("exp_avg",), loss_scale=1024.0, step=7, attempts=9, rolled_back=2,
    origin=("model.safetensors",), folders=(FolderUse(Path("/data/x"), 5000, 6000, 7000),), in_use=True,
    unfinished_import=False, snapshots=(3, 5), findings=("a commit record is damaged",),
    standby=StandbyRecord(other="luwu://host3:7070", in_sync=True),
)  # fmt: skip
DAMAGED = VerifyReport(7, 12, 3_000_000, 2.0, 1, "the checksum of chunk 4 is wrong", ("run.json is damaged",))


class Told(NamedTuple):
    """A command whose work is done by a stand-in.

    Attributes:
        command: its words; its section of docs/json.md.
        arguments: further words.
        stand_in: the function that is replaced.
        result: what that returns then.
        facts: some of the JSON's values, each with its words in the text.
    """

    command: str
    arguments: tuple[str, ...]
    stand_in: str
    result: Any
    facts: dict[str, tuple[Any, str]]
    status: int = 0


CASES = [
    Told(
        "doctor",
        (),
        "luwu.probe.machine.examine",
        [Finding("memory", "24 GiB"), Finding("CUDA", "none", False, "slow")],
        {
            "0.name": ("memory", "memory"),
            "0.good": (True, "ok"),
            "1.found": ("none", "none"),
            "1.cost": ("slow", "slow"),
        },
    ),
    Told(
        "explain",
        ("runs/first",),
        "luwu.plan.explained_run.explain_run",
        Explanation(
            Step(2.0, 64.0, 1, 0.5, 0.1, 0.0, 0.5, 0.5, 0.5, 8.0, 4.0, None, 20),
            [Bound(Part.PULL, 1.5), Bound(Part.COMPUTE, 0.5)],
            [Remedy("link", "a link of twice the rate", 1.6)],
        ),
        {
            "steps": (20, "20 steps"),
            "step_seconds": (2.0, "2 s"),
            "tokens_per_second": (32.0, "32 tokens/s"),
            "parts.0.share": (0.75, "75 %"),
            "remedies.0.gain": (1.6, "1.60x"),
            "remedies.0.text": ("a link of twice the rate",) * 2,
        },
    ),
    Told(
        "health",
        ("luwu://host:7070",),
        "luwu.control.health.check_health",
        "not_serving",
        {"url": ("luwu://host:7070", "luwu://host:7070"), "status": ("not_serving", " not_serving")},
        Exit.FAILED,
    ),
    Told(
        "store info",
        ("x",),
        "luwu.store.upkeep.info",
        INFO,
        {
            "uuid": ("ab12", "ab12"),
            "standby.in_sync": (True, "luwu://host3:7070 has each commit"),
            "model.0": ("GPT2LMHeadModel", "GPT2LMHeadModel"),
            "dtype": ("bfloat16", "bfloat16"),
            "frozen": (202, "1,203, 202 of them frozen"),
            "blocks": (3, "3 blocks"),
            "chunks": (4, "4 chunks"),
            "optimizer": ("adamw", "adamw"),
            "loss_scale": (1024.0, "1024"),
            "step": (7, "7 committed"),
            "attempts": (9, "9 tried"),
            "rolled_back": (2, "2 rolled back"),
            "in_use": (True, "open in another process"),
            "folders.0.path": ("/data/x", "/data/x"),
            "folders.0.free_bytes": (7000, "7 kB free"),
            "snapshots": ([3, 5], "step 3, step 5"),
            "findings.0": ("a commit record is damaged",) * 2,
        },
    ),
    Told(
        "store verify",
        ("x",),
        "luwu.store.verifying.verify",
        DAMAGED,
        {
            "step": (7, "step 7"),
            "chunks": (12, "12 chunks"),
            "nbytes": (3_000_000, "3 MB"),
            "damaged": (1, "1 damaged"),
            "first_damage": ("the checksum of chunk 4 is wrong",) * 2,
            "findings.0": ("run.json is damaged",) * 2,
        },
        Exit.FAILED,
    ),
    Told("store compact", ("x",), "luwu.store.upkeep.compact", 5000, {"given_back_bytes": (5000, "5 kB given back")}),
    Told("snapshot take", ("x",), "luwu.store.snapshots.take", 12, {"step": (12, "snapshot of step 12")}),
    Told(
        "snapshot list",
        ("x",),
        "luwu.store.snapshots.snapshots",
        [SnapshotInfo(12, NOON, 4000)],
        {"0.step": (12, " 12 "), "0.taken_at": ("2026-11-29 12:00:05+00:00", ":05"), "0.own_bytes": (4000, "4 kB")},
    ),
    Told(
        "import",
        ("x", "--store", "y"),
        "luwu.models.importing.import_pretrained",
        ImportReport(3, 1203, 2, 5000, False),
        {"step": (3, "step 3"), "parameters": (1203, "1,203 parameters"), "finished_before": (False, "parameters")},
    ),
    Told(
        "import",
        ("x", "--store", "y"),
        "luwu.models.importing.import_pretrained",
        ImportReport(3, 1203, 2, 0, True),
        {"finished_before": (True, "was imported from there before")},
    ),
    Told(
        "export",
        ("out", "--store", "x"),
        "luwu.store.exporting.export_safetensors",
        ExportReport(3, 1203, 5000, 4, 1),
        {
            "step": (3, "step 3"),
            "parameters": (1203, "1,203 parameters"),
            "nbytes": (5000, "5 kB"),
            "files": (4, "4 files"),
            "kept": (1, "1 of them"),
            "config": (False, "no config.json"),
        },
    ),
    Told(
        "tokenizer",
        ("x",),
        "luwu.data.bpe.train_tokenizer",
        TrainedTokenizer(300, 5000, 600, 200),
        {"out": ("tokenizer.json",) * 2, "vocabulary": (300, "300 tokens"), "bytes_per_token": (3.0, "3.000 bytes")},
    ),
    Told(
        "status",
        ("x",),
        "luwu.launch.asking.ask_run",
        pb.StatusReply(
            open=True,
            step=1200,
            attempts=9,
            rolled_back=2,
            workers=3,
            missing=[2],
            unwritten=4,
            pause="full",
            failure="gone",
            since_commit_seconds=8.0,
            present=[pb.WorkerStatus(rank=1, behind_seconds=90.0)],
            machines=[pb.MachineStatus(host="host2", peer="10.0.0.2", waits=5)],
            standby=pb.StandbyStatus(other="luwu://host3:7070", in_sync=True, waits_seconds=7.0),
            switches=[
                pb.SwitchStatus(
                    name="switch a",
                    address="10.0.0.4:7071",
                    parent="top",
                    link=pb.LinkCounts(
                        transport="udp", received_bytes=7000, sent_bytes=80, packets_again=3, packets_dropped=1
                    ),
                )
            ],
        ),
        {
            "step": (1200, "step 1,200"),
            "attempts": (9, "9 attempts"),
            "rolled_back": (2, "2 rolled back"),
            "missing": ([2], "waits for worker 2"),
            "unwritten": (4, "step 1,196, 8 s ago"),
            "pause": ("full", "full"),
            "failure": ("gone", "failed: gone"),
            "present.0.rank": (1, "worker 1"),
            "present.0.behind_seconds": (90.0, "no progress for 90 s"),
            "present.0.progress": (None, "told nothing yet"),
            "switches.0.name": ("switch a", "switch a at 10.0.0.4:7071, below switch top: "),
            "switches.0.link.received_bytes": (7000, "received 7 kB"),
            "switches.0.link.sent_bytes": (80, "sent 80 B"),
            "switches.0.link.packets_again": (3, "3 packets sent again"),
            "switches.0.link.packets_dropped": (1, "1 dropped"),
            "standby.in_sync": (True, "standby luwu://host3:7070: no commit counts without it"),
            "standby.waits_seconds": (7.0, "a commit waits for it since 7 s"),
            "machines.0.host": ("host2", "machine host2"),
            "machines.0.peer": ("10.0.0.2", "(10.0.0.2)"),
            "machines.0.waits": (5, "5 workers in the place of lost ones"),
        },
        Exit.FAILED,
    ),
    Told(
        "export",
        ("out", "--dcp", "--store", "x"),
        "luwu.store.dcp_output.export_dcp",
        DcpReport(3, 1203, 5000, 4, 1),
        {"step": (3, "step 3"), "parameters": (1203, "1,203 parameters"), "nbytes": (5000, "5 kB")},
    ),
]


def read(facts: Any, place: str) -> Any:
    for name in place.split("."):
        facts = facts[int(name)] if isinstance(facts, list) else facts[name]
    return facts


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    return done.exit_code, done.stdout


@pytest.fixture
def no_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands take any folder for that of a store, and write into an empty one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("luwu.cli.progress.store_folders", lambda named: named)
    monkeypatch.setattr("luwu.store.snapshots.snapshot_folders", lambda folders, step: folders)


@pytest.mark.usefixtures("no_store")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.command} {case.result.__class__.__name__}")
def test_json_has_the_facts_of_the_text(case: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case.stand_in, lambda *_, **__: case.result)
    words = (*case.command.split(), *case.arguments)
    status, text = run(*words)
    as_json = run(*words, "--json")
    assert (status, as_json[0]) == (case.status, case.status)
    facts = json.loads(as_json[1])
    for place, (value, words_of_it) in case.facts.items():
        assert (place, read(facts, place)) == (place, value)
        assert words_of_it in text, place
    [each] = facts[:1] if isinstance(facts, list) else [facts]
    if "--dcp" in words:
        each = {**each, "config": None}
    check_keys(case.command, each)


def test_a_plans_json_has_the_facts_of_its_text() -> None:
    words = ("plan", "--model", "175b", "--tokens", "300B", "--workers", "32", "--peers", "--layout", "1x4x8")
    facts = json.loads(run(*words, "--json")[1])
    text = run(*words)[1]
    check_keys("plan", facts)
    assert facts["fits"] and "fits" in text
    speeds = [each["tokens_per_second"] for each in (facts, *facts["peers"]) if each["fits"]]
    assert len(speeds) > 2 and all(f"{speed:,.0f}" in text for speed in speeds)
    assert f"{facts['budget']['days']:,.0f} days" in text


def test_a_simulations_json_has_the_facts_of_its_text() -> None:
    facts = json.loads(run("simulate", "--model", "opt-1.3b", "--json")[1])
    text = run("simulate", "--model", "opt-1.3b")[1]
    check_keys("simulate", facts)
    assert f"{facts['tokens_per_second']:,.0f} tokens/s" in text
    assert f"{facts['workers']} workers, {facts['switches']} switch" in text
    for track, share in facts["busy"].items():
        assert any(
            line.startswith(track) and line.endswith(f"busy {share:.0%} of the last step") for line in text.splitlines()
        )


def test_numbers_that_json_does_not_have_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"days": math.inf, "loss": [math.nan, 1.5, (-math.inf,)], "name": "a\x1b"})
    assert json.loads(capsys.readouterr().out) == {"days": None, "loss": [None, 1.5, [None]], "name": "a\x1b"}


def test_an_error_leaves_standard_output_empty(tmp_path: Path) -> None:
    assert run("store", "info", str(tmp_path), "--json") == (Exit.FAILED, "")


def test_a_report_is_no_json(tmp_path: Path) -> None:
    assert run("doctor", "--report", str(tmp_path / "report"), "--json") == (Exit.BAD_INPUT, "")
    assert not (tmp_path / "report").exists()


def commands() -> dict[str, Any]:
    """All commands by their words."""
    found: dict[str, Any] = {}

    def add(group: Any, words: str) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                add(command, f"{words}{name} ")
            else:
                found[words + name] = command

    add(typer.main.get_command(app), "")
    return found


def test_every_command_prints_json_or_is_named_with_the_reason() -> None:
    having = {name for name, each in commands().items() if any("--json" in option.opts for option in each.params)}
    assert {name.removesuffix(" --measured") for name in documented()} == having
    without = set(commands()) - having
    assert without == {
        "train", "server", "switch", "link", "launch slurm", "generate", "snapshot restore", "snapshot remove", "watch",
        "help", "trace", "standby take-over", "standby release",
    }  # fmt: skip
