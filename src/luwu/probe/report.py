"""A report about this machine and a run, for an issue: no keys, no text that a run learns from, no weights."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from luwu.core.errors import ConfigError
from luwu.core.json_fields import MALFORMED, read_object
from luwu.core.room import no_room
from luwu.core.settings import read_toml
from luwu.core.units import bytes_text
from luwu.core.words import printable
from luwu.launch.folder import RunFolder
from luwu.launch.on_alert import PRIVATE_KEY, without_private_key
from luwu.launch.processes import read_tail
from luwu.probe.machine import examine

PACKAGES = (
    "luwu", "torch", "numpy", "grpcio", "protobuf", "pydantic", "typer", "transformers", "tokenizers", "peft",
    "pyarrow", "prometheus-client", "tensorboardX", "trackio", "wandb", "opentelemetry-sdk", "ray", "lightning",
    "accelerate",
)  # fmt: skip
VARIABLES = (
    "LUWU_", "CUDA_", "NCCL_", "OMP_", "MKL_", "KMP_", "TORCH", "PYTORCH", "LD_PRELOAD", "MALLOC_", "SLURM_JOB_ID",
)  # fmt: skip
"""Beginnings of the names of environment variables that change what a run does."""

SECRETS = ("LUWU_JOB_KEY",)
"""Variables whose value is nobody else's business."""

LAST_ROWS = 20
"""Rows of metrics.jsonl and alerts.jsonl that a report has, the last ones."""


def write_report(path: Path, store: Path, run: Path | None) -> None:
    """Write a report into a new file.

    Args:
        path: the file.
        store: folder that a store would go to; the disk below it is examined.
        run: a run folder; None: the report is of the machine alone.

    Raises:
        ConfigError: there is such a file, it cannot be made, or the run folder is none.
        StoreSpaceError: the file's disk is full; no part of the file stays.
    """
    if run is not None:
        require_run(run)
    # Names of files and variables may be no text, which Python reads as lone surrogates.
    text = printable(without_home("\n".join(lines_of(store, run)) + "\n"))
    try:
        file = path.open("x", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--report: expected a new file in a folder that may be written to, found {path}: {error.strerror}"
        ) from error
    try:
        with file:
            file.write(text)
    except OSError as error:
        path.unlink(missing_ok=True)  # a part of a report would be in the way of the next try
        raise no_room(path, error) from error


def require_run(run: Path) -> None:
    """Raise ConfigError where a folder is none of a run, or cannot be searched."""
    try:
        found = RunFolder(run).config_path.is_file()
    except OSError as error:
        raise ConfigError(
            f"--run: expected a folder of luwu train, found {run} that cannot be read: {error.strerror}; give this "
            "user permission to read it"
        ) from None
    if not found:
        raise ConfigError(f"--run: expected a folder of luwu train, found {run} without config.toml")


def without_home(text: str) -> str:
    """Return a text in which this user's home folder is ``~``."""
    home = str(Path.home())
    return text if home == "/" else re.sub(rf"{re.escape(home)}(?![^/\s])", "~", text)


def lines_of(store: Path, run: Path | None) -> Iterator[str]:
    """Yield a report's lines."""
    yield "# luwu doctor --report"
    yield f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"
    yield "\n## Versions\n"
    yield f"Python {platform.python_version()}, {platform.platform()}"
    yield from (f"{name} {version}" for name in PACKAGES if (version := version_of(name)))
    yield "\n## Machine\n"
    for finding in examine(store):
        yield f"{'ok' if finding.good else '--'}  {finding.name}: {finding.found}"
    if names := [name for name in sorted(os.environ) if name.startswith(VARIABLES)]:
        yield "\n## Environment\n"
        yield from (f"{name}={'(set)' if name in SECRETS else os.environ[name]}" for name in names)
    if run is not None:
        yield from lines_of_run(RunFolder(run))


def version_of(package: str) -> str | None:
    """Return the version of a package, None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def lines_of_run(folder: RunFolder) -> Iterator[str]:
    """Yield the lines about a run: its settings, its last figures and alerts, and its files by size."""
    yield "\n## Run\n"
    yield str(folder.path)
    yield f"\n{folder.config_path.name}, without comments and {PRIVATE_KEY}:\n"
    yield from lines_of_settings(folder.config_path)
    if folder.metrics_path.is_file():
        yield f"\nThe end of {folder.metrics_path.name}:\n"
        try:
            yield from read_tail(folder.metrics_path).splitlines()[-LAST_ROWS:]
        except OSError as error:
            yield f"(cannot be read: {error.strerror})"
    if folder.alerts_path.is_file():
        yield f"\nThe end of {folder.alerts_path.name}, where a run that failed says why:\n"
        yield from lines_of_alerts(folder.alerts_path)
    yield "\nFiles:\n"
    for path in sorted(folder.path.rglob("*")):
        try:
            status = path.stat()
        except OSError:  # it was removed meanwhile, or lies in a folder that may only be listed
            continue
        if stat.S_ISREG(status.st_mode):
            yield f"{bytes_text(status.st_size)}  {path.relative_to(folder.path)}"


def lines_of_alerts(path: Path) -> Iterator[str]:
    """Yield the last alerts of a run, without the name of its host; a line that is damaged is left out."""
    try:
        rows = read_tail(path).splitlines()[-LAST_ROWS:]
    except OSError as error:
        yield f"(cannot be read: {error.strerror})"
        return
    for row in rows:
        with suppress(*MALFORMED):
            words = read_object(row)
            yield f"step {words['step']}: {words['name']} {words['state']}: {words['text']}"


def lines_of_settings(path: Path) -> Iterator[str]:
    """Yield what a config.toml says. Its text may have the private setting in any of TOML's ways of writing."""
    try:
        tables = without_private_key(read_toml(path))
    except ConfigError:  # whose text may have the line in question
        yield "(cannot be read, or is no TOML)"
        return
    for name, value in tables.items():
        if not isinstance(value, dict):
            yield _line(name, value)
    for name, value in tables.items():
        if isinstance(value, dict):
            yield f"[{name}]"
            yield from (_line(key, each) for key, each in value.items())


def _line(name: str, value: object) -> str:
    return f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}"
