"""Logger for OpenTelemetry: gauges of its SDK, with the names that Prometheus has for the same figures.

The environment variables of OpenTelemetry say where figures go, and how often; the SDK and its exporters read them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from luwu.control.figures import TRAINING
from luwu.core.errors import ConfigError

if TYPE_CHECKING:
    from luwu.observe.loggers import Run

SERVICE = "luwu"
"""Name of the service, unless the setting or the environment has another."""

EXPORTERS = "opentelemetry_metrics_exporter"
"""Group of entry points in which packages name their exporters of metrics, as the SDK's own set-up finds them."""

PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""Exporters of OTLP by its protocols. The first is the default."""

EXPORTER = "opentelemetry-exporter-otlp-proto-http"
"""Package of the default one."""


STEP = "luwu_train_step"

GAUGES = {
    "train/loss": "luwu_train_loss",
    "train/lr": "luwu_train_learning_rate",
    "train/grad_norm": "luwu_train_gradient_norm",
    "train/loss_scale": "luwu_train_loss_scale",
    "validation/loss": "luwu_train_validation_loss",
    "speed/step_seconds": "luwu_train_attempt_seconds",
    "speed/tokens_per_second": "luwu_train_attempt_tokens_per_second",
    "speed/hidden": "luwu_train_attempt_hidden_ratio",
}
"""Names of gauges by those that loggers have for the figures."""

OF_ONE_ATTEMPT = {
    "luwu_train_attempt_tokens_per_second": "tokens a second of all workers, in the last attempt",
    "luwu_train_attempt_hidden_ratio": "share of communication that computation hides, in the last attempt",
}
"""Help of the figures that Prometheus has as means over several attempts, under other names."""

HELP = {figure.name: figure.help for figure in TRAINING} | OF_ONE_ATTEMPT


def unit_of(name: str) -> str:
    """Return the unit of a figure as OpenTelemetry writes it; empty: none, or one that the name alone has."""
    return "s" if name.endswith("_seconds") else ""


def exporters(environment: Mapping[str, str]) -> list[EntryPoint]:
    """Return the exporters that an environment names in OTEL_METRICS_EXPORTER: without it, that of OTLP.

    Raises:
        ConfigError: the package of an exporter is not installed, or the protocol of OTLP is none.
    """
    protocol = (
        environment.get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL")
        or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or next(iter(PROTOCOLS))
    )
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: expected {' or '.join(PROTOCOLS)} in the environment, found {protocol!r}"
        )
    found = []
    for named in (environment.get("OTEL_METRICS_EXPORTER") or "otlp").split(","):
        name = PROTOCOLS[protocol] if named.strip() == "otlp" else named.strip()
        if name == "none":
            continue
        installed = list(entry_points(group=EXPORTERS, name=name))
        if not installed:
            raise ConfigError(
                f"log: opentelemetry needs the exporter {name}, found none; pip install "
                f"{EXPORTER} for {PROTOCOLS['http/protobuf']}, or name another in OTEL_METRICS_EXPORTER"
            )
        found += installed[:1]
    return found


class OpenTelemetry:
    """Gauges of OpenTelemetry's SDK. A program that has set up metrics keeps its own set-up.

    Args:
        run: the run; its name is the attribute ``run`` of every figure.
        place: name of the service; empty: that of the environment, or ``luwu``.
        step: the last step that was made.
    """

    package = "opentelemetry.sdk"
    wheels = f"opentelemetry-sdk {EXPORTER}"

    def __init__(self, run: Run, place: str, step: int) -> None:
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        provider = metrics.get_meter_provider()
        self._own: MeterProvider | None = None
        if not isinstance(provider, MeterProvider):
            made = [exporter.load()() for exporter in exporters(os.environ)]
            readers = [each if isinstance(each, MetricReader) else PeriodicExportingMetricReader(each) for each in made]
            named = {"service.name": SERVICE, **OTELResourceDetector().detect().attributes}
            told = {"service.name": place} if place else {}
            resource = Resource.create({**named, **told, "service.instance.id": run.id})
            provider = self._own = MeterProvider(readers, resource)
        self._provider = provider
        meter = provider.get_meter("luwu")
        self._gauges = {name: meter.create_gauge(name, unit_of(name), HELP[name]) for name in (STEP, *GAUGES.values())}
        self._attributes = {"run": run.name}

    @staticmethod
    def check() -> None:
        """Raise ConfigError where an exporter that the environment asks for is not installed."""
        exporters(os.environ)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Set the gauges; the SDK sends them at its own pace."""
        self._gauges[STEP].set(step, self._attributes)
        for name, value in figures.items():
            self._gauges[GAUGES[name]].set(value, self._attributes)

    def close(self) -> None:
        """Send what is left."""
        if self._own is None:
            self._provider.force_flush()
        else:
            self._own.shutdown()
