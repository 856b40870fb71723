"""`luwu watch` shows a real run: its stream, its page's files, its token, TLS, and what it refuses."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import torch
from tests.integration.network import make_authority, make_certificate
from typer.testing import CliRunner

import luwu
from luwu.cli.main import app
from luwu.core.exits import Exit
from luwu.watch.serving import is_loopback


class Page:
    """A page that `luwu watch` serves. ``cookie`` and ``bearer``: how a request shows the token; empty: not."""

    def __init__(self, url: str, authority: Path | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port
        self._authority = authority
        self.token = parse_qs(parts.query)["token"][0]

    def ask(self, path: str, **headers: str) -> http.client.HTTPResponse:
        """Return the answer to a request."""
        if self._authority is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=60)
        else:
            trusts = ssl.create_default_context(cafile=self._authority)
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=60, context=trusts)
        connection.request("GET", path, headers=headers)
        return connection.getresponse()

    def get(self, path: str) -> http.client.HTTPResponse:
        """Return the answer to a request with the token."""
        return self.ask(path, authorization=f"Bearer {self.token}")

    def records(self, runs: str) -> Iterator[dict[str, Any]]:
        """Return the records of a stream."""
        answer = self.get(f"/api/stream?runs={runs}")
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


@contextmanager
def watching(*arguments: object, authority: Path | None = None) -> Iterator[Page]:
    command = [sys.executable, "-m", "luwu.cli", "watch", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Page(process.stdout.readline().strip(), authority)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()
    assert process.returncode == 0


def test_a_live_run_is_seen_and_then_its_end(tmp_path: Path) -> None:
    with luwu.open(tmp_path / "run", memory="64MiB") as session, watching(tmp_path) as page:
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
        model = luwu.parallelize(model, session, blocks=[torch.nn.Linear])
        optimizer = luwu.AdamW(model, lr=1e-2)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        assert [run["name"] for run in json.loads(page.get("/api/runs").read())] == ["run"]
        records = page.records("0")
        first = next(record for record in records if record["state"].get("step") == 1)
        state = first["state"]
        assert (state["live"], state["workers"], len(state["present"])) == (True, 1, 1)
        assert len(state["blocks"]) == len(first.get("block_names", state["blocks"])) == 3
        assert state["traffic"].keys() == {"pulled", "pushed", "store read", "store written"}
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        assert next(record for record in records if record["state"].get("step") == 2)["anew"] is False
        session.close()
        ended = next(record for record in records if not record["state"]["live"])
        assert ended["state"] == {
            "live": False, "ended": True, "why": "is not under way; its folder tells no steps", "alerts": []
        }  # fmt: skip


def test_only_the_token_opens_the_page_and_nothing_else_is_told(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"attempt": 0, "step": 1, "committed": true, "loss": 2.0}\n')
    with watching(tmp_path) as page:
        for path in ("/", "/api/runs", "/api/stream?runs=0", "/app.js", "/none", "/?token=wrong", "/?token="):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "luwu-watch-0=x"}):
                answer = page.ask(path, **headers)
                assert (answer.status, answer.read()) == (403, b""), path
        opened = page.ask(f"/?token={page.token}")
        assert (opened.status, opened.headers["location"]) == (303, "/")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        shown = page.ask("/", cookie=cookie.partition(";")[0])
        assert shown.status == 200 and b"<title>LuWu</title>" in shown.read()
        assert "default-src 'self'" in shown.headers["content-security-policy"]
        assert page.get("/api/stream?runs=7").status == page.get("/api/stream").status == 404
        record = next(page.records("0"))
        assert record["rows"]["loss"] == [2.0] and record["state"]["live"] is False


def test_every_file_of_the_page_is_served_and_names_no_other_host(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    static = Path(luwu.__file__).parent / "watch" / "static"
    files = [path.relative_to(static) for path in static.rglob("*") if path.is_file()]
    assert Path("vendor/uPlot.iife.min.js") in files
    with watching(tmp_path) as page:
        for file in files:
            answer = page.get(f"/{file}")
            assert (answer.status, answer.read()) == (200, (static / file).read_bytes())
    own = [static / file for file in files if file.parts[0] != "vendor"]
    assert [file for file in own if "https:" in file.read_text() or 'src="//' in file.read_text()] == []


def test_beyond_this_machine_the_page_has_tls(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    authority = make_authority(tmp_path, "authority")
    files = make_certificate(tmp_path, "page", authority)
    tls = ("--host", "0.0.0.0", "--tls-cert", files.certificate, "--tls-key", files.key)
    command = [sys.executable, "-m", "luwu.cli", "watch", str(tmp_path), *map(str, tls), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("https://0.0.0.0:")
        page = Page(url.replace("0.0.0.0", "127.0.0.1"), files.authority)
        assert page.get("/").status == 200
        assert "Secure" in page.ask(f"/?token={page.token}").headers["set-cookie"]
        process.send_signal(signal.SIGTERM)
    assert process.returncode == Exit.DONE


def refusal(*arguments: object, status: int = 2) -> str:
    done = CliRunner().invoke(app, ["watch", *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done.output


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    assert "add --tls-cert and --tls-key" in refusal(tmp_path, "--host", "0.0.0.0")
    assert "together" in refusal(tmp_path, "--tls-cert", tmp_path / "x.pem")
    (tmp_path / "empty").mkdir()
    assert "found neither" in refusal(tmp_path / "empty")
    assert "cannot be used" in refusal(
        tmp_path, "--tls-cert", tmp_path / "x.pem", "--tls-key", tmp_path / "x.key", "--port", 0
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = refusal(tmp_path, "--port", taken.getsockname()[1], status=1)  # as of --metrics
        assert "choose another with --port" in told and "(luwu help LUWU-301)" in told


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("example.org", False)],
)
def test_loopback_is_known(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_where_the_output_is_no_terminal_it_is_shown_once(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"attempt": 0, "step": 1, "committed": true, "loss": 2.0}\n')
    done = CliRunner().invoke(app, ["watch", "--terminal", str(tmp_path)])
    assert done.exit_code == 0 and "step 1" in done.output and "loss 2" in done.output
