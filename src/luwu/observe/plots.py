"""The two pictures a run leaves behind: how it learned and how fast it went."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from luwu.core.room import NO_WAIT, Room

SMOOTHED_SHARE = 0.02
"""The bold line averages this share of the run around each step."""

INK, FAINT, ACCENT, GRID = "#1f4e79", "#9dbbd8", "#c0392b", "#e6e6e6"


def draw_loss(
    rows: Sequence[dict[str, Any]],
    path: Path,
    validation: float | None,
    unigram: float,
    unit: str = "byte",
    room: Room = NO_WAIT,
) -> None:
    """Plot training loss in nats per token over committed steps into a PNG or SVG file.

    Args:
        rows: rows of metrics.jsonl.
        path: the file to write.
        validation: validation loss after the last step, if there is one.
        unigram: entropy of single tokens: the loss of a model without context.
        unit: name of a token.
        room: the wait for a full disk.
    """
    committed = [row for row in rows if row["committed"] and row["loss"] is not None]
    if not committed:
        return
    figure, axes = _canvas("Loss", f"nats per {unit}")
    steps = [row["step"] for row in committed]
    _line(axes, steps, [row["loss"] for row in committed], "training")
    axes.axhline(unigram, color="#888888", linestyle=":", label=f"single-{unit} entropy {unigram:.2f}")
    measured = [row for row in committed if row.get("validation_loss") is not None]
    if measured:
        losses = [row["validation_loss"] for row in measured]
        axes.plot([row["step"] for row in measured], losses, ".", color=ACCENT, label="validation", zorder=4)
    if validation is not None:
        axes.plot([steps[-1]], [validation], "o", color=ACCENT, label=f"validation {validation:.3f}", zorder=5)
    rolled_back = [row for row in rows if row["committed"] is False]
    if rolled_back:
        axes.plot(
            [row["step"] for row in rolled_back],
            [min(row["loss"] for row in committed)] * len(rolled_back),
            "x",
            color=ACCENT,
            label=f"{len(rolled_back)} rolled back",
        )
    axes.legend(frameon=False)
    _save(figure, path, room)


def draw_throughput(rows: Sequence[dict[str, Any]], path: Path, room: Room = NO_WAIT) -> None:
    """Plot tokens a second of all workers, and the hidden share of communication, as `draw_loss`."""
    rows = [row for row in rows if row["seconds"] is not None]  # a step without a report has none
    if not rows:
        return
    figure, axes = _canvas("Throughput", "tokens per second")
    steps = [row["step"] for row in rows]
    _line(axes, steps, [row["tokens_per_second"] for row in rows], "tokens per second")
    axes.set_ylim(bottom=0)
    hidden = axes.twinx()
    hidden.plot(steps, _smooth([100 * row["hidden"] for row in rows]), color=ACCENT, linewidth=1)
    hidden.set_ylim(0, 102)
    hidden.set_ylabel("communication hidden behind compute, %", color=ACCENT)
    hidden.spines["top"].set_visible(False)
    _save(figure, path, room)


def _save(figure: Figure, path: Path, room: Room) -> None:
    drawn = BytesIO()
    figure.savefig(drawn, format=path.suffix.removeprefix("."))
    room.write_file(path, drawn.getvalue())


def _canvas(title: str, unit: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.grid(color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line(axes: Axes, steps: Sequence[int], values: Sequence[float], label: str) -> None:
    axes.plot(steps, values, color=FAINT, linewidth=0.8)
    axes.plot(steps, _smooth(values), color=INK, linewidth=2, label=label)


def _smooth(values: Sequence[float]) -> list[float]:
    """A centred running mean, narrower at both ends."""
    reach = max(1, int(len(values) * SMOOTHED_SHARE / 2))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(values))
    return list((sums[high] - sums[low]) / (high - low))
