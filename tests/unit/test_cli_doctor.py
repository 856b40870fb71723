from __future__ import annotations

import json

from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.probe import machine
from luwu.probe.machine import Finding


def test_the_table_has_a_row_for_each_finding(tmp_path):
    result = CliRunner().invoke(app, ["doctor", "--store", str(tmp_path)])
    assert result.exit_code == 0
    for word in ("processor", "memory", "O_DIRECT", "torch", "CUDA", "liburing"):
        assert word in result.stdout


def test_names_are_whole_on_a_narrow_terminal(monkeypatch, tmp_path):
    found = [Finding("allocator", "libtcmalloc_minimal.so.4" + 40 * "4", True)]
    monkeypatch.setattr(machine, "examine", lambda store: found)
    shown = CliRunner().invoke(app, ["doctor", "--store", str(tmp_path)], env={"COLUMNS": "60"}).stdout
    assert "\u2026" not in shown and shown.count("4") == 41


def test_no_word_is_broken_where_the_output_is_no_terminal(monkeypatch, tmp_path):
    found = [Finding("disk access", f"works in {tmp_path}/{'folder/' * 40}", True)]
    monkeypatch.setattr(machine, "examine", lambda store: found)
    shown = CliRunner().invoke(app, ["doctor", "--store", str(tmp_path)], env={"COLUMNS": "60"}).stdout
    assert found[0].found in shown


def test_json_has_a_cost_where_something_is_missing(monkeypatch, tmp_path):
    found = [Finding("processor", "8 cores", True, "no overlap"), Finding("memory", "1 GiB", False, "reads more")]
    monkeypatch.setattr(machine, "examine", lambda store: found)
    shown = CliRunner().invoke(app, ["doctor", "--store", str(tmp_path), "--json"]).stdout
    assert [row["cost"] for row in json.loads(shown)] == ["", "reads more"]


def test_json_says_the_same(tmp_path):
    result = CliRunner().invoke(app, ["doctor", "--store", str(tmp_path), "--json"])
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert {"name", "found", "good", "cost"} == set(rows[0])
    assert "processor" in {row["name"] for row in rows}
