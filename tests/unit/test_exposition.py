"""Figures for Prometheus: what is answered, with the real client library, and the table that documents it."""

from __future__ import annotations

import json
import re
import select
import socket
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.network_serving import KEY, QUICK

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import dashboard
import figures_table

from luwu.control import exposition
from luwu.control.exposition import Exposition, Labelled, Table, parse_metrics
from luwu.control.figures import SERVER, SWITCH, TABLES, TRAINING, WORKER_BEHIND, Figure
from luwu.core.settings import build
from luwu.errors import ConfigError, ServerError
from luwu.launch.exposing import training_stats
from luwu.observe.meter import Meter
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerFile, ServerSettings

STEPS = Figure("luwu_test_steps", "counter", "steps of a test", "made.steps")
MADE = "luwu_test_steps_total"
LEVEL = Figure("luwu_test_level", "gauge", "level of a test", "level")
WAITS = Figure("luwu_test_waits", "gauge", "waits of a test, by rank", "waits")


def asked(port: int) -> dict[tuple[str, str], float]:
    """Ask as Prometheus does; return values by name and label."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_figures_are_read_when_they_are_asked_for() -> None:
    stats: dict[str, object] = {"made": {"steps": 3}, "level": None}
    behind = {"0": 0.0, "1": 2.5}
    with Exposition(
        "127.0.0.1:0", [Table((STEPS, LEVEL), lambda: stats)], [Labelled(LEVEL, "rank", lambda: behind)]
    ) as found:
        port = found.port
        assert asked(port) == {
            ("luwu_test_steps_total", ""): 3,
            ("luwu_test_level", "0"): 0,
            ("luwu_test_level", "1"): 2.5,
        }
        stats |= {"made": {"steps": 4}}
        del behind["1"]
        assert asked(port) == {("luwu_test_steps_total", ""): 4, ("luwu_test_level", "0"): 0}
    with pytest.raises(OSError):
        asked(port)


def test_nothing_answers_unasked() -> None:
    with Exposition("", [Table((STEPS,), dict)]) as found:
        assert found.port == 0


def test_a_port_alone_is_of_this_machine() -> None:
    assert str(parse_metrics(":9090")) == "127.0.0.1:9090"
    assert str(parse_metrics("10.0.0.9:9090")) == "10.0.0.9:9090"
    for text in ("", "9090", "host", ":99999", "http://host:1", ": 1"):
        with pytest.raises(ConfigError, match=r"expected HOST:PORT"):
            parse_metrics(text)
    with pytest.raises(ConfigError, match="metrics: expected HOST:PORT"):
        build(ServerFile, {"server": {"stores": ["/tmp/none"], "workers": 1, "metrics": "9090"}})


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ServerError, match=f"metrics: cannot listen at {place}: .* choose another port"):
            Exposition(place, [])


def test_idle_connections_take_nothing_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition._Handler, "timeout", 0.2)
    with Exposition("127.0.0.1:0", [Table((LEVEL,), lambda: {"level": 1})]) as found:
        before = threading.active_count()
        idle = [socket.create_connection(("127.0.0.1", found.port)) for _ in range(4 * exposition.MOST_REQUESTS)]
        assert threading.active_count() - before <= exposition.MOST_REQUESTS
        for each in idle:
            each.settimeout(30)
            assert each.recv(1) == b""  # it is closed, at once or when its time is over
            each.close()
        assert asked(found.port) == {(LEVEL.name, ""): 1}


def test_connections_that_drip_take_nothing_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition._Handler, "timeout", 0.3)
    with Exposition("127.0.0.1:0", [Table((LEVEL,), lambda: {"level": 1})]) as found:
        dripping = [socket.create_connection(("127.0.0.1", found.port)) for _ in range(exposition.MOST_REQUESTS)]
        for each in dripping:
            each.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        until = time.monotonic() + 30
        while dripping:
            assert time.monotonic() < until
            closed, _, _ = select.select(dripping, [], [], 0.05)
            for each in closed:
                with suppress(ConnectionResetError):
                    assert each.recv(1) == b""
                each.close()
                dripping.remove(each)
            for each in dripping:
                with suppress(OSError):  # it was closed meanwhile
                    each.sendall(b"a")
        assert asked(found.port) == {(LEVEL.name, ""): 1}


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(
        ConfigError, match=r"metrics: needs the package prometheus-client, .* pip install prometheus-client"
    ):
        Exposition(":0", [])
    Exposition("", []).close()


def test_a_server_of_the_network_tells_its_run(tmp_path: Path) -> None:
    settings = ServerSettings(stores=(tmp_path / "store",), workers=2, listen="127.0.0.1:0", metrics=":0")
    with NetworkServer(settings, KEY, QUICK) as server:
        found = asked(server.metrics_port)
        assert found["luwu_server_workers", ""] == 2
        assert found["luwu_server_workers_present", ""] == found["luwu_server_step", ""] == 0
        assert found["luwu_server_paused", ""] == found["luwu_server_failures_total", ""] == 0
        port = server.metrics_port
    with pytest.raises(OSError):
        asked(port)


def test_a_run_tells_its_last_attempt() -> None:
    meter = Meter(1, 10)
    assert training_stats(meter, 0) == {"steps": 10, "restarts": 0}
    report = {
        "kind": "step", "attempt": 0, "step": 1, "committed": True, "loss": 2.5, "sequences": 4, "tokens": 64,
        "lr": 0.1, "grad_norm": None, "began": 0.0, "ended": 2.0, "waited_seconds": 0.0, "busy_seconds": 1.0,
        "bytes_pulled": 5, "bytes_pushed": 6, "validation": (9.0, 3),
    }  # fmt: skip
    meter.add(0, report)  # type: ignore[arg-type]
    meter.add(0, {**report, "attempt": 1, "step": 2, "ended": 4.0, "began": 2.0, "validation": None})  # type: ignore[arg-type]
    stats = training_stats(meter, 3)
    values = {figure.name: figure.read(stats) for figure in TRAINING}
    assert values["luwu_train_step"] == 2 and values["luwu_train_steps"] == 10
    assert values["luwu_train_loss"] == 2.5 and values["luwu_train_validation_loss"] == 3.0
    assert values["luwu_train_gradient_norm"] is None and values["luwu_train_restarts"] == 3
    assert values["luwu_train_tokens_per_second"] == 32 and values["luwu_train_left_seconds"] == 16


def test_the_page_has_every_figure_and_the_dashboard_knows_no_other() -> None:
    page = figures_table.PAGE.read_text()
    assert page == page[: page.index(figures_table.BEGIN)] + (
        f"{figures_table.BEGIN}\n{figures_table.figures_tables()}\n" + page[page.index(figures_table.END) :]
    )
    alerts = f"{figures_table.ALERTS_BEGIN}\n{figures_table.alerts_table()}\n{figures_table.ALERTS_END}"
    assert alerts in page
    assert dashboard.PAGE.read_text() == dashboard.text()
    known = {figure.full_name for figures in TABLES.values() for figure in figures}
    queries = [query for panel in dashboard.PANELS for query in panel.queries]
    named = set(re.findall(r"luwu_\w+", " ".join(queries)))
    assert named <= known
    assert set(re.findall(r"luwu_\w+", page[: page.index("## All figures")])) <= known
    assert json.loads(dashboard.text())["uid"] == "luwu"


def test_every_figure_has_one_name_and_its_unit() -> None:
    figures = [figure for table in TABLES.values() for figure in table]
    assert len({figure.name for figure in figures}) == len(figures)
    assert WORKER_BEHIND in figures and {*SERVER, *SWITCH} <= set(figures)
    for figure in figures:
        assert re.fullmatch(r"luwu_[a-z_]+[a-z]", figure.name) and not figure.name.endswith("_total")
        assert figure.help[0].islower() or figure.help[0] == "1"
