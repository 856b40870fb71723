"""The report of `luwu doctor --report` has what an issue needs, and no secret."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.core.errors import ConfigError
from luwu.launch.folder import RunFolder
from luwu.probe import report


def asked(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *map(str, arguments)])
    return result.exit_code, result.output + str(result.exception or "")


def a_run(folder: Path) -> Path:
    run = folder / "run"
    (run / "store").mkdir(parents=True)
    (run / "config.toml").write_text('[model]\nlayers = 2\n[run]\non_alert = "https://host/secret"\nsteps = 3\n')
    (run / "metrics.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in range(100)))
    (run / "store" / "chunks").write_bytes(bytes(2_000_000))
    return run


def test_a_report_has_versions_machine_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LUWU_JOB_KEY", "very secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("A_TOKEN", "another secret")
    code, output = asked("--store", tmp_path, "--report", tmp_path / "report.md", "--run", a_run(tmp_path))
    assert code == 0, output
    text = (tmp_path / "report.md").read_text()
    assert "secret" not in text and str(tmp_path) not in text
    for line in (
        "LUWU_JOB_KEY=(set)", "OMP_NUM_THREADS=3", "layers = 2", "[run]", "steps = 3", '{"step": 80}',
        '{"step": 99}', "2 MB  store/chunks",
        "~/run",
    ):  # fmt: skip
        assert line in text.splitlines(), line
    assert '{"step": 79}' not in text
    assert f"luwu {report.version_of('luwu')}" in text and "O_DIRECT: " in text


def test_a_report_says_why_a_run_has_failed(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    alert = {"name": "run_failed", "state": "raised", "text": "the run has failed after step 3: why", "step": 3}
    (run / "alerts.jsonl").write_text(f'half"}}\n{json.dumps(alert | {"host": "my-host"})}\n{{"name"')
    lines = list(report.lines_of_run(RunFolder(run)))
    assert "step 3: run_failed raised: the run has failed after step 3: why" in lines
    assert "my-host" not in "\n".join(lines) and not any("half" in line for line in lines)


def test_names_that_are_no_utf_8_are_in_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path)
    Path(os.fsdecode(bytes(run) + b"/foo\xff")).touch()
    monkeypatch.setenv("LUWU_X", os.fsdecode(b"v\xff"))
    code, output = asked("--store", tmp_path, "--report", tmp_path / "report.md", "--run", run)
    assert code == 0, output
    lines = (tmp_path / "report.md").read_text(encoding="utf-8").splitlines()
    assert "0 B  foo\ufffd" in lines and "LUWU_X=v\ufffd" in lines


def test_no_part_of_a_report_stays_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.md"
    opened = Path.open

    def open_full(self: Path, *arguments: Any, **named: Any) -> Any:
        file = opened(self, *arguments, **named)
        if self == path:
            os.dup2(full, file.fileno())
        return file

    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", open_full)
            code, output = asked("--store", tmp_path, "--report", path)
    finally:
        os.close(full)
    assert code != 0 and "No space left on device" in output and str(path) in output
    assert not path.exists()
    code, output = asked("--store", tmp_path, "--report", path)
    assert code == 0, output


def test_no_heading_without_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "VARIABLES", ("NO_SUCH_VARIABLE",))
    assert "## Environment" not in "\n".join(report.lines_of(tmp_path, None))


@pytest.mark.parametrize(
    "text",
    [
        '[run]\n"on_alert" = "https://host/secret"\nsteps = 3',
        "[run]\n'on_alert'='https://host/secret'\nsteps = 3",
        '[run]\n"on\\u005falert" = "https://host/secret"\nsteps = 3',
        'run.on_alert = "https://host/secret"\nrun.steps = 3',
        'run = {on_alert = "https://host/secret", steps = 3}',
        '[run]\non_alert = """\\\n  https://host/secret"""\nsteps = 3',
        '[run]\r\non_alert = "https://host/secret"\r\nsteps = 3\r\n',
        '[run]\nsteps = 3 # secret\n# on_alert = "https://host/secret"',
        'on_alert = "https://host/secret"\n[run]\nsteps = 3',
        '[run]\nsteps = 3\n[[more]]\non_alert = "https://host/secret"',
    ],
)
def test_no_way_to_write_the_private_setting_shows_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    lines = list(report.lines_of_settings(path))
    assert "steps = 3" in lines and "secret" not in "\n".join(lines)


def test_settings_that_are_no_toml_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('on_alert = "https://host/secret" x')
    assert list(report.lines_of_settings(path)) == ["(cannot be read, or is no TOML)"]
    path.write_text('when = 2026-01-02\nnames = ["a", "b"]\n')
    assert list(report.lines_of_settings(path)) == ['when = "2026-01-02"', 'names = ["a", "b"]']


def refuse(*arguments: object) -> str:
    raise PermissionError(errno.EACCES, "Permission denied")


def test_files_of_a_run_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(report, "read_tail", refuse)
    lines = list(report.lines_of_run(RunFolder(run)))
    assert "(cannot be read, or is no TOML)" in lines and "(cannot be read: Permission denied)" in lines
    assert "2 MB  store/chunks" in lines
    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(ConfigError, match=r"--run: expected a folder of luwu train, found .*: Permission denied"):
        report.write_report(tmp_path / "report.md", tmp_path, run)


def test_a_report_of_the_machine_alone(tmp_path: Path) -> None:
    code, output = asked("--store", tmp_path, "--report", tmp_path / "report.md")
    assert code == 0, output
    assert "## Run" not in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--report", "there"), "--report: expected a new file"),
        (("--report", "no/folder/report.md"), "--report: expected a new file"),
        (("--report", "report.md", "--run", "."), "expected a folder of luwu train"),
        (("--run", "."), "--run: expected --report beside it"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("mine")
    code, output = asked("--store", tmp_path, *arguments)
    assert code != 0 and word in output
    assert (tmp_path / "there").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
