"""Output of a simulation: a trace for Perfetto, a picture of its last step, and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from luwu.core import perfetto
from luwu.core.perfetto import Slice
from luwu.plan.chart import GRID, save_picture, writing
from luwu.plan.simulation.run import Played

COLOURS = ("#1f4e79", "#2a9d8f", "#e9c46a", "#c0392b", "#8d6a9f", "#e76f51", "#577590")
MOST_TRACKS = 24


def write_trace(played: Played, path: Path) -> None:
    """Write the trace for Perfetto; its seconds are simulated ones. A commit takes none of them."""
    process = f"luwu simulate {played.request.model.name}"
    slices = [Slice(span.track, span.name, span.start, span.end) for span in played.record.spans]
    commits = [
        Slice(f"server {server}: commit", f"step {step}", end, end)
        for server in range(1, 1 + played.request.cluster.servers)
        for step, end in enumerate(played.ends, start=1)
    ]
    tracks = sorted({*played.tracks, *(commit.track for commit in commits)})
    with writing(path, "trace"):
        perfetto.write_trace(path, process, tracks, [*slices, *commits])


def draw_timeline(played: Played, path: Path) -> None:
    """Draw who was busy when in the last step; ConfigError for a file that is no picture or cannot be written."""
    tracks = played.tracks[:MOST_TRACKS]
    figure = Figure(figsize=(11, 1 + 0.35 * len(tracks)), dpi=120, layout="constrained")
    axes = figure.subplots()
    begin = played.last_begin
    for height, track in enumerate(tracks):
        bars = [
            (max(span.start - begin, 0.0), span.end - max(span.start, begin))
            for span in played.record.spans
            if span.track == track and span.end > begin
        ]
        colour = COLOURS[height % len(COLOURS)]
        axes.broken_barh(bars, (height - 0.35, 0.7), facecolors=colour)
    axes.set_yticks(range(len(tracks)), [f"{track}  {played.busy_share(track):.0%}" for track in tracks], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds of the last step")
    axes.set_xlim(0, played.step_seconds)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    model, cluster = played.request.model, played.request.cluster
    axes.set_title(f"{model.name}, {cluster.workers} workers: who is busy when", loc="left", fontweight="bold")
    save_picture(figure, path, "picture")


def as_json(played: Played) -> dict[str, Any]:
    """Times in simulated seconds, and the busy share of every track in the last step."""
    return {
        "steps": [end - start for start, end in zip((0.0, *played.ends), played.ends, strict=False)],
        "step_seconds": played.step_seconds,
        "tokens_per_second": played.tokens_per_second,
        "workers": played.links.workers,
        "switches": played.links.switches,
        "levels": played.links.levels,
        "busy": {track: played.busy_share(track) for track in played.tracks},
    }
