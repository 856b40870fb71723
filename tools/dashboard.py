"""Writes the dashboard of LuWu's figures for Grafana, deploy/grafana/luwu.json.

usage: python tools/dashboard.py
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from figures import ROOT

PAGE = ROOT / "deploy" / "grafana" / "luwu.json"

WIDTH, HEIGHT, COLUMNS = 8, 7, 3


class Panel(NamedTuple):
    """A graph: its title, its unit by Grafana's name, and its queries with their legends."""

    title: str
    unit: str
    queries: dict[str, str]


def rate(name: str) -> str:
    """Return the query of a counter's rate."""
    return f"rate({name}[$__rate_interval])"


def share(part: str, whole: str) -> str:
    """Return the query of a counter's share of another."""
    return f"{rate(part)} / {rate(whole)}"


PANELS = (
    Panel("Loss (nats per token)", "none", {"luwu_train_loss": "loss", "luwu_train_validation_loss": "validation"}),
    Panel("Tokens a second", "none", {"luwu_train_tokens_per_second": "tokens/s"}),
    Panel("Gradient norm", "none", {"luwu_train_gradient_norm": "before clipping"}),
    Panel("Committed steps", "none", {"luwu_server_step": "{{instance}}"}),
    Panel("Steps at stake", "none", {"luwu_server_unwritten_steps": "{{instance}}"}),
    Panel("Time since the last commit point", "s", {"luwu_server_since_commit_seconds": "{{instance}}"}),
    Panel(
        "Disk",
        "Bps",
        {rate("luwu_store_read_bytes_total"): "read", rate("luwu_store_written_bytes_total"): "written"},
    ),
    Panel(
        "Workers' traffic",
        "Bps",
        {rate("luwu_server_pulled_bytes_total"): "pulled", rate("luwu_server_pushed_bytes_total"): "pushed"},
    ),
    Panel(
        "Waits",
        "percentunit",
        {
            share("luwu_server_pulls_waited_total", "luwu_server_pulls_total"): "pulls for the disk",
            share("luwu_server_states_waited_total", "luwu_server_updated_chunks_total"): "gradients for states",
        },
    ),
    Panel("Updates", "none", {rate("luwu_server_updated_elements_total"): "parameters a second"}),
    Panel("Busy update threads", "none", {rate("luwu_server_update_seconds_total"): "threads"}),
    Panel(
        "Attempts in vain",
        "none",
        {"luwu_server_rolled_back": "rolled back", "luwu_server_voided_total": "void, because of a lost worker"},
    ),
    Panel("Workers", "none", {"luwu_server_workers": "wanted", "luwu_server_workers_present": "present"}),
    Panel("Restarts of workers", "none", {"luwu_train_restarts_total": "{{instance}}"}),
    Panel("Workers that others wait for", "s", {"luwu_worker_behind_seconds": "worker {{rank}}"}),
    Panel("Alerts", "none", {"luwu_train_alert": "{{alert}}"}),
    Panel(
        "Full disks and failures",
        "none",
        {"luwu_server_paused": "paused", "luwu_server_failures_total": "failed runs"},
    ),
    Panel(
        "Switch: packets in",
        "pps",
        {
            rate("luwu_switch_packets_in_total"): "{{instance}}",
            rate("luwu_switch_kernel_packets_in_total"): "{{instance}} in the kernel",
        },
    ),
    Panel("Switch: sums sent again", "pps", {rate("luwu_switch_sums_again_total"): "{{instance}}"}),
    Panel("Switch: no room to send", "pps", {rate("luwu_switch_dropped_full_total"): "{{instance}}"}),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard; its data source is chosen on its page."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = []
    for number, panel in enumerate(PANELS):
        row, column = divmod(number, COLUMNS)
        targets = [
            {"refId": chr(ord("A") + place), "datasource": source, "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(panel.queries.items())
        ]
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": panel.title,
                "datasource": source,
                "gridPos": {"x": WIDTH * column, "y": HEIGHT * row, "w": WIDTH, "h": HEIGHT},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": targets,
            }
        )
    variable = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": "LuWu",
        "uid": "luwu",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": [variable]},
        "panels": panels,
    }


def text() -> str:
    """Return the file's contents."""
    return json.dumps(dashboard(), indent=1) + "\n"


def main() -> None:
    """Write the file."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
