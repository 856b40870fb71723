"""The picture of a plan: the parts of each phase of a step, and of a worker's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from luwu.core.errors import ConfigError
from luwu.core.units import bytes_text, seconds_text
from luwu.plan.planning import Plan

COLOURS = {
    "compute": "#1f4e79",
    "pull": "#2a9d8f",
    "push": "#e9c46a",
    "copy": "#264653",
    "disk": "#c0392b",
    "update": "#8d6a9f",
}
OTHER, GRID = "#9aa5b1", "#e6e6e6"
FORMATS = (".png", ".svg", ".pdf")


def draw_plan(plan: Plan, path: Path) -> None:
    """Write the chart; ConfigError for a file that is no picture or cannot be written."""
    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    step, memory = figure.subplots(2, 1, height_ratios=(3, 1))
    _draw_step(plan, step)
    _draw_memory(plan.worker.gpu, plan.request.cluster.gpu.memory_bytes, memory)
    figure.suptitle(f"{plan.request.model.name} on {plan.request.cluster.name}", x=0.01, ha="left", fontweight="bold")
    save_picture(figure, path, "chart")


def save_picture(figure: Figure, path: Path, name: str) -> None:
    """Write a figure to the file of a setting; ConfigError for a file that is no picture or cannot be written."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{name}: expected a file that ends in {', '.join(FORMATS)}, found {path.name}")
    with writing(path, name):
        figure.savefig(path)


@contextmanager
def writing(path: Path, name: str) -> Iterator[None]:
    """Context manager: an OSError is a ConfigError that names the setting and its file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{name}: {path}: cannot be written: {error.strerror}; choose another file") from None


def _draw_step(plan: Plan, axes: Axes) -> None:
    """Draw the parts of each phase one below the other, each as long as it would take alone."""
    labels, at = [], 0.0
    rows = [(phase, name, value) for phase in plan.step.phases for name, value in phase.parts.items() if value > 0]
    starts = {}
    for phase in plan.step.phases:
        starts[phase.name] = at
        axes.axvline(at, color=GRID, zorder=0)
        at += phase.seconds
    for height, (phase, name, value) in enumerate(rows):
        axes.barh(height, value, left=starts[phase.name], color=COLOURS.get(name, OTHER), height=0.7)
        axes.text(starts[phase.name] + value, height, f" {seconds_text(value)}", va="center", fontsize=8)
        labels.append(f"{phase.name}: {name}")
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1 * max(at, max((starts[phase.name] + value for phase, _, value in rows), default=at)))
    axes.set_xlabel("seconds")
    axes.set_title(f"a step: {seconds_text(plan.step.seconds)}, {plan.step.binds} binds", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_memory(parts: Mapping[str, float], room: float, axes: Axes) -> None:
    at = 0.0
    for index, (name, value) in enumerate(parts.items()):
        axes.barh(0, value / 1e9, left=at / 1e9, color=list(COLOURS.values())[index % len(COLOURS)], label=name)
        at += value
    axes.axvline(room / 1e9, color="black", linewidth=1)
    axes.set_yticks([])
    axes.set_xlabel("GB")
    axes.set_title(f"a worker's GPU: {bytes_text(at)} of {bytes_text(room)}", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=7, ncols=len(parts), loc="upper center", bbox_to_anchor=(0.5, -0.45))
    axes.spines[["top", "right", "left"]].set_visible(False)
