"""The logger for OpenTelemetry: names and units of Prometheus's table, through the real SDK and OTLP's exporter."""

from __future__ import annotations

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from luwu.control.figures import TRAINING
from luwu.core.errors import ConfigError
from luwu.observe import loggers
from luwu.observe.loggers import Loggers, Run, check_packages, figures_of
from luwu.observe.meter import StepRecord
from luwu.observe.opentelemetry import GAUGES, HELP, OF_ONE_ATTEMPT, STEP, OpenTelemetry, exporters, unit_of

RECORD = StepRecord(
    step=1, attempt=0, committed=True, loss=3.5, lr=0.01, grad_norm=1.5, tokens=64, seconds=0.5,
    tokens_per_second=128.0, hidden=0.75, bytes_pulled=1, bytes_pushed=2, loss_scale=1024.0, validation_loss=2.5,
)  # fmt: skip

SENT = {
    "luwu_train_step": 2.0,
    "luwu_train_loss": 3.0,
    "luwu_train_learning_rate": 0.01,
    "luwu_train_gradient_norm": 1.5,
    "luwu_train_loss_scale": 1024.0,
    "luwu_train_validation_loss": 0.25,
    "luwu_train_attempt_seconds": 0.5,
    "luwu_train_attempt_tokens_per_second": 128.0,
    "luwu_train_attempt_hidden_ratio": 0.75,
}


def train(folder: Path, target: str = "opentelemetry") -> None:
    """Two steps, an attempt that is rolled back between them, and a validation."""

    def nobody(text: str) -> None:
        raise AssertionError(text)

    found = Loggers([target], Run("abc123", "gpt", folder, {}), 0, nobody)
    for record in (RECORD, replace(RECORD, committed=False, loss=99.0), replace(RECORD, step=2, loss=3.0)):
        found.step(record)
    found.validated(2, 0.25)
    found.close()


def test_every_figure_has_a_gauge_and_the_help_of_prometheus() -> None:
    assert set(figures_of(RECORD)) == set(GAUGES)
    of_prometheus = {figure.name: figure.help for figure in TRAINING}
    assert {STEP, *GAUGES.values()} - set(OF_ONE_ATTEMPT) <= set(of_prometheus)
    assert not set(OF_ONE_ATTEMPT) & set(of_prometheus)
    assert all(HELP[name] == text for name, text in of_prometheus.items())
    assert (unit_of("luwu_train_attempt_seconds"), unit_of("luwu_train_attempt_tokens_per_second")) == ("s", "")


def test_a_program_with_metrics_of_its_own_gets_the_last_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    train(tmp_path)
    [of_a_resource] = reader.get_metrics_data().resource_metrics
    [scope] = of_a_resource.scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    assert {name: metric.data.data_points[0].value for name, metric in found.items()} == SENT
    assert {name: metric.description for name, metric in found.items()} == {name: HELP[name] for name in SENT}
    assert [name for name, metric in found.items() if metric.unit == "s"] == ["luwu_train_attempt_seconds"]
    assert all(dict(metric.data.data_points[0].attributes) == {"run": "gpt"} for metric in found.values())
    provider.get_meter("mine").create_gauge("mine").set(1)
    assert reader.get_metrics_data() is not None  # it was not shut down
    provider.shutdown()


class Collector:
    """A collector of OTLP over HTTP on this machine, which keeps what it gets."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/metrics"
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def value_of(metric: Any) -> float:
    [point] = metric.gauge.data_points
    return point.as_double if point.HasField("as_double") else float(point.as_int)


@pytest.mark.parametrize(("target", "service"), [("opentelemetry", "nightly"), ("opentelemetry:words", "words")])
def test_the_environment_says_where_figures_go(
    target: str, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="OTLP's exporter is not installed")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly")
    check_packages([target])
    train(tmp_path, target)
    collector.close()
    [sent] = ExportMetricsServiceRequest.FromString(collector.bodies[-1]).resource_metrics
    resource = {each.key: each.value.string_value for each in sent.resource.attributes}
    assert (resource["service.name"], resource["service.instance.id"]) == (service, "abc123")
    assert {metric.name: value_of(metric) for scope in sent.scope_metrics for metric in scope.metrics} == SENT


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, ["otlp_proto_http"]),
        ({"OTEL_METRICS_EXPORTER": ""}, ["otlp_proto_http"]),
        ({"OTEL_METRICS_EXPORTER": "none"}, []),
        ({"OTEL_METRICS_EXPORTER": "console, otlp"}, ["console", "otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"},
            ["otlp_proto_http"],
        ),
    ],
)
def test_exporters_are_those_that_the_environment_names(
    environment: dict[str, str], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("luwu.observe.opentelemetry.entry_points", lambda group, name: [name, "another"])
    assert exporters(environment) == names


def test_an_exporter_or_a_package_that_is_not_there_and_a_wrong_protocol_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "no_such_exporter")
    monkeypatch.setattr(OpenTelemetry, "package", "json")
    with pytest.raises(
        ConfigError, match=r"needs the exporter no_such_exporter, .*pip install opentelemetry-exporter-otlp-proto-http"
    ):
        check_packages(["opentelemetry"])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(ConfigError, match=r"expected http/protobuf or grpc in the environment, found 'http/json'"):
        check_packages(["opentelemetry"])
    monkeypatch.setattr(loggers.OpenTelemetry, "package", "no_such_package.sdk")
    with pytest.raises(
        ConfigError,
        match=r"needs the package no_such_package.sdk, .*pip install opentelemetry-sdk ",
    ):
        check_packages(["opentelemetry"])
