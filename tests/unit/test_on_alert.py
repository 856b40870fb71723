"""The command or URL of `--on-alert`: what it gets, and that no failure of it reaches the run."""

from __future__ import annotations

import json
import os
import shlex
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.network.namespaces import has_ended, wait_until
from luwu.errors import ConfigError
from luwu.launch.folder import RunFolder
from luwu.launch.job import Job
from luwu.launch.on_alert import MOST_BYTES, MOST_WAITING, OnAlertCalls, check_on_alert, check_program, without_private
from luwu.launch.settings import build_settings

ALERT = {"name": "loss_rising", "state": "raised", "text": "the loss rises; \"it\" $HOME 'is' 3", "step": 7}


def told(target: str, *alerts: dict[str, Any], limit_seconds: float = 20.0) -> str:
    """Tell alerts, and return the failure's sentence."""
    calls = OnAlertCalls(target, limit_seconds)
    for alert in alerts:
        calls.tell(alert)
    calls.close()
    return calls.failure


def script(folder: Path, text: str) -> str:
    """Write a script with a space in its name, and return the command that runs it."""
    path = folder / "on alert.sh"
    path.write_text(text)
    return f"sh {shlex.quote(str(path))} {shlex.quote(str(folder))}"


@contextmanager
def web_server(
    status: int, gate: threading.Event | None = None, location: str = ""
) -> Iterator[tuple[str, list[tuple[str, dict[str, str], bytes]]]]:
    """Answer requests with a status, once a gate is open; yield the URL, and paths, headers and bodies that came."""
    came = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if gate is not None:
                gate.wait()
            came.append((self.path, dict(self.headers), body))
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()

        def do_GET(self) -> None:
            came.append((self.path, dict(self.headers), b""))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hooks/secret", came
        finally:
            server.shutdown()
            thread.join()


def test_a_command_gets_the_alert_on_its_input_and_in_its_environment(tmp_path: Path) -> None:
    command = script(tmp_path, 'cat >> "$1/in"; echo >> "$1/in"; printenv LUWU_ALERT_TEXT LUWU_ALERT_STEP >> "$1/env"')
    assert told(command, ALERT, {**ALERT, "state": "cleared", "step": 8}) == ""
    lines = [json.loads(line) for line in (tmp_path / "in").read_text().splitlines()]
    assert lines == [ALERT, {**ALERT, "state": "cleared", "step": 8}]
    assert (tmp_path / "env").read_text() == f"{ALERT['text']}\n7\n{ALERT['text']}\n8\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\0b", "a\ufffdb".encode()),
        ("a\ud800b", b"a?b"),
        ("a path \udcff", b"a path \xff"),
        ("x" + "\u00e9" * MOST_BYTES, b"x" + "\u00e9".encode() * (MOST_BYTES // 2 - 1)),
    ],
)
def test_a_text_that_the_environment_does_not_take_is_cleaned_and_cut(
    text: str, expected: bytes, tmp_path: Path
) -> None:
    command = script(tmp_path, 'printf %s "$LUWU_ALERT_TEXT" > "$1/text"; cat > "$1/in"')
    assert told(command, {**ALERT, "text": text}) == ""
    assert (tmp_path / "text").read_bytes() == expected
    assert json.loads((tmp_path / "in").read_text())["text"] == text


def test_a_url_gets_it_as_json() -> None:
    with web_server(204) as (url, came):
        assert told(url, ALERT) == ""
    ((path, headers, body),) = came
    assert path == "/hooks/secret" and headers["Content-Type"] == "application/json"
    assert json.loads(body) == ALERT


def test_a_url_that_refuses_is_said_without_its_path() -> None:
    with web_server(503) as (url, came):
        failure = told(url, ALERT, ALERT)
    assert (
        failure == "on-alert: 127.0.0.1 has failed: it answered 503 (Service Unavailable); alerts.jsonl has all alerts"
    )
    assert len(came) == 2


def test_a_command_that_fails_is_said_once_with_its_last_line(tmp_path: Path) -> None:
    command = script(tmp_path, 'echo first; echo "no such host" >&2; echo >> "$1/calls"; exit 3')
    failure = told(command, ALERT, ALERT)
    # The rest of the command may have a secret.
    assert failure == "on-alert: sh has failed: exit status 3: no such host; alerts.jsonl has all alerts"
    assert (tmp_path / "calls").read_text() == "\n\n"


def test_a_command_that_says_much_fills_no_disk_and_its_last_line_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))  # it may write no temporary file
    command = script(tmp_path, 'i=0; while [ $i -lt 3000 ]; do printf "%01000d\\n" $i >&2; i=$((i+1)); done; exit 3')
    assert told(command, ALERT).endswith(f"has failed: exit status 3: {2999:01000d}; alerts.jsonl has all alerts")


def test_a_program_that_a_command_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    text = '(read line < "$1/gate"; echo late >&2; echo done > "$1/left") & echo last >&2; exit 3'
    assert told(script(tmp_path, text), ALERT).endswith("has failed: exit status 3: last; alerts.jsonl has all alerts")
    (tmp_path / "gate").write_text("go\n")
    wait_until(lambda: (tmp_path / "left").exists(), "what was left behind could write to its standard error")


def test_a_command_that_hangs_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    command = script(tmp_path, 'mkfifo "$1/never"; cat "$1/never" & echo $! > "$1/child"; cat "$1/never"')
    failure = told(command, ALERT, limit_seconds=0.5)
    assert "has not ended within 0.5 s, and was killed" in failure
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: has_ended(child), "what the command has started has ended")


def test_alerts_that_find_no_room_to_wait_are_left_out() -> None:
    gate = threading.Event()
    with web_server(200, gate) as (url, came):
        calls = OnAlertCalls(url)
        for _ in range(MOST_WAITING + 2):  # one is told at a time
            calls.tell(ALERT)
        assert (
            calls.failure
            == f"on-alert: 127.0.0.1 has failed: {MOST_WAITING} alerts wait for it; alerts.jsonl has all alerts"
        )
        gate.set()
        calls.close()
    assert MOST_WAITING <= len(came) <= MOST_WAITING + 1


@pytest.mark.parametrize(
    "target, problem",
    [
        ("http://", "without a host"),
        ("https://[::1/S3CRET", "whose host or port is none"),
        ("https://bot:S3CRET@host/hook", "with a user or a password"),
        ("https://S3CRET@host/hook", "with a user or a password"),
        ("https://host:S3CRET/hook", "whose host or port is none"),
        ("https://host:70000/S3CRET", "whose host or port is none"),
        ("https://host:0/S3CRET", "with port 0"),
        ("https://host/S3CRET hook", "with a space"),
        ("https://host/S3CRET\n", "with a space"),
        ("https://host/S3CRET\x7f", "with a space"),
        ("https://host/S3CRET\u00e9", "beyond ASCII"),
        (" https://host/S3CRET", "begins with http:// or https://"),
        ("ftp://host/S3CRET", "begins with http:// or https://"),
        ("mail 'admin", "No closing quotation"),
        ("curl -H 'Authorization: Bearer S3CRET http://host", "No closing quotation"),
        (" ", "expected a command, or a URL"),
    ],
)
def test_what_is_no_target_is_refused(target: str, problem: str) -> None:
    with pytest.raises(ConfigError) as found:
        check_on_alert(target)
    assert problem in str(found.value)
    with pytest.raises(ConfigError, match=r"run\.on_alert") as of_settings:
        build_settings({"run": {"on_alert": target}})
    assert "S3CRET" not in f"{found.value}{of_settings.value}"


def test_a_failed_request_is_said_without_words_that_may_have_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("nonnumeric port: 'S3CRET'")

    monkeypatch.setattr("http.client.HTTPConnection.request", fails)
    assert (
        told("http://127.0.0.1/S3CRET", ALERT)
        == "on-alert: 127.0.0.1 has failed: ValueError; alerts.jsonl has all alerts"
    )


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_said_and_not_followed(status: int) -> None:
    with web_server(200) as (other, lost), web_server(status, location=other) as (url, came):
        failure = told(url, ALERT)
    assert failure == (
        f"on-alert: 127.0.0.1 has failed: it answered {status}; give the address that it redirects to; "
        "alerts.jsonl has all alerts"
    )
    assert len(came) == 1 and not lost


def test_a_server_that_sends_a_byte_now_and_then_has_the_time_limit_for_all_of_them() -> None:
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        with suppress(OSError):  # its end is how the server hears that nobody waits
            while not ended.wait(0.02):
                connection.sendall(b"a")
        connection.close()
        heard.set()

    heard = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=drip, args=(listener,))
        server.start()
        try:
            failure = told(f"http://127.0.0.1:{listener.getsockname()[1]}/hook", ALERT, limit_seconds=0.3)
            assert heard.wait(20), "the connection is still open"
        finally:
            ended.set()
            server.join()
    assert failure == "on-alert: 127.0.0.1 has failed: it had not answered within 0.3 s; alerts.jsonl has all alerts"


def test_a_server_that_is_not_there_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        failure = told(f"http://127.0.0.1:{taken.getsockname()[1]}/hook", ALERT)
    assert failure == "on-alert: 127.0.0.1 has failed: ConnectionRefusedError; alerts.jsonl has all alerts"


def test_a_program_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"on_alert: expected a program that can be run, found 'no-such-program'"):
        check_program("no-such-program --now")
    for good in ("", "sh -c true", "https://example.org/hook"):
        check_program(good)


@pytest.mark.parametrize("target, mode", [("sh -c true", 0o600), ("", 0o644)])
def test_the_files_that_have_the_target_are_private(target: str, mode: int, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder, settings = RunFolder(tmp_path), build_settings({"run": {"on_alert": target}})
        (tmp_path / ".config.toml.partial").write_text("of a crash")
        folder.config_path.write_text("of another start")
        folder.save_settings(settings)
        Job(settings=settings, folder=str(tmp_path), socket_path=None, launcher_pid=1).write(folder.job_path)
    finally:
        os.umask(before)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {
        "config.toml": mode, "job.json": mode
    }  # fmt: skip
    assert folder.saved_settings() is not None


def test_settings_for_others_have_no_target() -> None:
    assert without_private({"run.steps": 3, "run.on_alert": "https://host/hooks/secret"}) == {"run.steps": 3}
