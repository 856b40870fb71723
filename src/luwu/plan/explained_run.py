"""A run folder explained: its rows and settings are read, and what is found is put into sentences and into JSON."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from luwu.core.errors import ConfigError
from luwu.core.manifest import ROOT_NAME, Manifest
from luwu.core.units import seconds_text
from luwu.core.words import counted
from luwu.launch.folder import RunFolder
from luwu.launch.settings import Settings, build_settings
from luwu.observe.binding import mean_step, sentence_of
from luwu.observe.metrics import iterate_metrics
from luwu.plan.disk_changes import DiskChanges
from luwu.plan.explaining import Explanation, explain
from luwu.store.folders import read_identity

MOST_STEPS = 100
"""Steps that are explained, the last ones of a run."""

FIRST_STEPS = 3
"""Steps of a run that are left out where there are more: they record the pass, and fill memory."""

FEW_STEPS = 10
"""Steps below which an explanation says that it has few."""

_MOST_ROWS = FIRST_STEPS + MOST_STEPS + 1  # a step begins where the one before it ends

LEAST_PERCENT = 5
"""Share of a step below which a part is not worth a line."""


def explain_run(path: Path) -> Explanation:
    """Explain the run in a folder; it may be under way.

    Raises:
        ConfigError: there is no run, it has no step yet, its steps do not tell what they waited for, or a file cannot
        be read.
        StoreError: the store's manifest cannot be read.
    """
    folder = RunFolder(path)
    saved = folder.saved_settings()
    if saved is None:
        found = f"no {folder.config_path.name} in it" if path.is_dir() else "no such folder"
        raise ConfigError(f"{path}: expected the folder of a run, found {found}; check the name")
    settings = build_settings(saved)
    made, rolled_back = _last_steps(folder)
    if len(made) < 2:
        raise _too_few(folder, len(made), rolled_back)
    first = min(FIRST_STEPS, len(made) - 1)
    step = mean_step([*made][first:]) or mean_step([*made])
    if step is None:
        raise ConfigError(
            f"{path}: expected two steps or more with what they waited for, found none in "
            f"{folder.metrics_path.name}; rows of older versions and damaged ones do not tell: make some steps with "
            "this version"
        )
    return explain(step, settings, _changes(folder, settings))


def _last_steps(folder: RunFolder) -> tuple[deque[dict[str, Any]], int]:
    """Return the rows of the last steps, of which a long run has too many for memory, and how often none was made."""
    made: deque[dict[str, Any]] = deque(maxlen=_MOST_ROWS)
    rolled_back = 0
    for row in iterate_metrics(folder.metrics_path):
        if row.get("committed"):
            made.append(row)
        else:
            rolled_back += row.get("committed") is False
    return made, rolled_back


def _too_few(folder: RunFolder, made: int, rolled_back: int) -> ConfigError:
    found, do = counted(made, "step") if made else "none", "wait for the first ones"
    if rolled_back:
        found = f"{found}, and {counted(rolled_back, 'attempt')} that made no step"
        do = "if it stays so, lower the learning rate, or look at the data"
    return ConfigError(f"{folder.path}: expected two steps or more in {folder.metrics_path.name}, found {found}; {do}")


def _changes(folder: RunFolder, settings: Settings) -> DiskChanges:
    """Return what settings change about the disk's bytes; nothing where the store is elsewhere, or partly frozen."""
    identity = read_identity(folder.stores(settings)[0])
    if identity is None or not all(block.trainable for block in identity.manifest.blocks):
        return DiskChanges()
    return DiskChanges.of(settings, elements_of(identity.manifest))


def elements_of(manifest: Manifest) -> list[int]:
    """Return the elements of the root, then of every other block."""
    root = sum(block.elements for block in manifest.blocks if block.name == ROOT_NAME)
    return [root, *(block.elements for block in manifest.blocks if block.name != ROOT_NAME)]


def lines_of(found: Explanation) -> Iterator[str]:
    """Return an explanation as text, a line at a time."""
    step = found.step
    steps = counted(step.steps, "step")
    yield (
        f"{f'from {steps} only,' if step.steps < FEW_STEPS else steps} of {seconds_text(step.seconds)} in the mean, "
        f"{step.tokens / step.seconds:,.0f} tokens/s"
    )
    for place, bound in enumerate(found.bounds):
        if not place or 100 * bound.seconds >= LEAST_PERCENT * step.seconds:
            yield sentence_of(step, bound)
    yield "what would help:" if found.remedies else "nothing that is known here would help by much"
    for remedy in found.remedies:
        yield f"  {remedy.gain:.2f}x  {remedy.text}"


def as_json(found: Explanation) -> dict[str, Any]:
    """Return an explanation as JSON can hold it: times in seconds, gains as factors of tokens a second."""
    step = found.step
    return {
        "steps": step.steps,
        "step_seconds": step.seconds,
        "tokens_per_second": step.tokens / step.seconds,
        "binds": found.bounds[0].part.value if found.bounds else None,
        "parts": [
            {
                "part": bound.part.value,
                "seconds": bound.seconds,
                "share": bound.seconds / step.seconds,
                "sentence": sentence_of(step, bound),
            }
            for bound in found.bounds
        ],
        "server": step.served._asdict() if step.served is not None else None,
        "remedies": [remedy._asdict() for remedy in found.remedies],
    }
