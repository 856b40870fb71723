"""Names in a run folder, for whoever looks at one. This module loads no model, no text and no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from luwu.core.errors import ConfigError
from luwu.core.quantities import check_name
from luwu.core.settings import read_toml


class RunPaths:
    """Paths in a run folder; making one touches nothing. Raises ConfigError for a name that cannot be written down."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        check_name(self.path)
        self.config_path = self.path / "config.toml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.alerts_path = self.path / "alerts.jsonl"
        self.job_path = self.path / "job.json"
        self.id_path = self.path / "run-id"
        self.written_path = self.path / "written.json"
        self.key_path = self.path / "job.key"
        self.plot_paths = (self.path / "loss.png", self.path / "throughput.png")

    def saved_settings(self) -> dict[str, Any] | None:
        """Return the tables of config.toml, None if no run was started here yet; raises ConfigError."""
        try:
            found = self.config_path.exists()
        except OSError as error:
            raise ConfigError(
                f"{self.path}: expected a run folder, found one that cannot be read: {error.strerror}; give this user "
                "permission to read it"
            ) from None
        return read_toml(self.config_path) if found else None

    def stores_in(self, tables: Mapping[str, Any]) -> list[Path]:
        """Return the folders of the run's store that tables of a config.toml name, or its own; only texts name one."""
        run = tables.get("run")
        named = run.get("stores") if isinstance(run, Mapping) else None
        stores = [Path(store) for store in named if isinstance(store, str)] if isinstance(named, list) else []
        return stores or [self.path / "store"]
