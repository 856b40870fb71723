"""The same as the page in lines of text, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luwu.core.errors import ServerError
from luwu.core.progress import BlockView
from luwu.core.units import bytes_text, rate_text, seconds_text, share_text
from luwu.core.words import counted
from luwu.launch.machine_words import machine_text
from luwu.plan.wear import DAY_SECONDS
from luwu.watch.columns import number_of
from luwu.watch.pace import has_finite_loss, pace_of
from luwu.watch.runs import WatchedRun

TRANSPORTS = {"shm": "shared memory", "tcp": "TCP", "udp": "UDP"}
"""Transports in words."""

_SIGNS: dict[int, str] = dict(zip(BlockView, ".r-o+uw#", strict=True))


def lines_of(run: WatchedRun) -> Iterator[str]:
    """Return what is known of a run, a line at a time."""
    state, rows = run.state, run.recent
    known = [state["step"]] if state["live"] else _known(rows, "step")
    steps = run.settings.get("run.steps")
    if known:
        yield f"{run.name}: step {int(known[-1]):,}{f' of {steps:,}' if isinstance(steps, int) else ''}"
    else:
        silent = isinstance(run.unseen, ServerError)
        yield f"{run.name}: {'its server does not answer' if silent else 'no step is known'}"
    yield f"  {(run.binding or 'under way') if state['live'] else state['why']}"
    if run.reading is not None:
        yield f"  metrics.jsonl is being read: {run.reading:.0%}"
    elif rows:
        yield f"  {_figures(rows)}"
    if state["live"]:
        yield from _live_lines(state)
    else:
        yield from (f"  {alert}" for alert in state["alerts"])
    if run.wear is not None:
        yield from _wear_lines(run.wear)


def _figures(rows: Sequence[Mapping[str, Any]]) -> str:
    named = {"loss": "loss", "norm": "grad_norm", "lr": "lr"}
    found = {word: f"{values[-1]:.4g}" for word, name in named.items() if (values := _known(rows, name))}
    if not has_finite_loss(rows):
        found = {"loss": "not finite", **{word: value for word, value in found.items() if word != "loss"}}
    words = [f"{word} {value}" for word, value in found.items()]
    if (speed := pace_of(rows).tokens_per_second) is not None:
        words.append(f"tokens/s {speed:,.0f}")
    if validated := _known(rows, "validation_loss"):
        words.append(f"validation {validated[-1]:.4g}")
    return "  ".join(words)


def _known(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return the values of a column in the rows that have one; as on the page, another one than a number is none."""
    values = (number_of(row.get(name)) for row in rows)
    return [value for value in values if math.isfinite(value)]


def _live_lines(state: Mapping[str, Any]) -> Iterator[str]:
    yield f"  last on the disk: step {state['durable_step']:,}, {state['since_commit_seconds']:.0f} s ago"
    for notice in (state["failure"], state["pause"], *state["alerts"]):
        if notice:
            yield f"  {notice}"
    if state["missing"]:
        yield f"  waits for {', '.join(f'worker {rank}' for rank in state['missing'])}"
    if state["blocks"]:
        yield f"  blocks  {''.join(_SIGNS.get(view, '?') for view in state['blocks'])}"
    for worker in state["present"]:
        memory = f", {bytes_text(worker['memory_bytes'])} of memory" if worker["memory_bytes"] else ""
        late = f"; the others have waited for {worker['behind_seconds']:.0f} s" if worker["late"] else ""
        pushed = "" if worker["pushed"] is None else f", {counted(worker['pushed'], 'block')} pushed"
        yield f"  worker {worker['rank']}: {worker['activity']}{pushed}{memory}{late}"
    yield f"  {_rates(state['traffic'])}"
    for link in state["links"]:
        yield f"  link of {link['name']}: {_link_words(link)}"
    for machine in state["machines"]:
        yield f"  {machine_text(machine['host'], machine['peer'], machine['ranks'], machine['waits'])}"
    for switch in state["switches"]:
        parent = f", below switch {switch['parent']}" if switch["parent"] else ""
        yield f"  {switch['name']} at {switch['address']}{parent}"
    for disk in state["disks"]:
        read, written = (_rate(disk[f"{way}_bytes_per_second"]) for way in ("read", "written"))
        yield f"  disk {disk['name']}: read {read}, written {written}, queue {disk['queue']}"


def _wear_lines(wear: Mapping[str, Any]) -> Iterator[str]:
    """Return a line for each folder of the store: what was written there, and what that is to its disk."""
    for store in wear["stores"]:
        disk = f" on disk {store['disk']}" if store["disk"] else ""
        words = f"  store{' ' if store['folder'] else ''}{store['folder']}{disk}: "
        words += f"{bytes_text(store['written_bytes'])} written {wear['whose']}"
        if store["step_bytes"] is not None:
            words += f", {bytes_text(store['step_bytes'])} a step"
        if store["endurance_share"] is not None:
            endurance = bytes_text(wear["endurance_bytes"])
            words += f", {share_text(store['endurance_share'])} of the disk's rated endurance of {endurance}"
        if store["life_days"] is not None:
            words += f", which lasts for {seconds_text(DAY_SECONDS * store['life_days'])} of such training"
        yield words


def _link_words(link: Mapping[str, Any]) -> str:
    received, sent = (_rate(link[f"{way}_bytes_per_second"]) for way in ("received", "sent"))
    words = f"{TRANSPORTS.get(link['transport'], link['transport'])}, received {received}, sent {sent}"
    if link["transport"] != "udp":
        return words
    share = "" if link["again_share"] is None else f" ({link['again_share']:.2%} now)"
    return f"{words}, {link['packets_again']:,} packets sent again{share}, {link['packets_dropped']:,} dropped"


def _rates(traffic: Mapping[str, float | None]) -> str:
    return "  ".join(f"{name} {_rate(value)}" for name, value in traffic.items())


def _rate(value: float | None) -> str:
    return "?" if value is None else rate_text(value)


_LEGEND = "blocks: " + ", ".join(f"{_SIGNS[view]} {view.name.lower().replace('_', ' ')}" for view in BlockView)


def text_of(runs: Sequence[WatchedRun]) -> str:
    """Return what is known of the runs after their last look; those under way come first, as screens are short."""
    ordered = sorted(runs, key=lambda run: not run.state["live"])
    lines = [line.replace("\n", " ") for run in ordered for line in lines_of(run)]
    return "\n".join([*lines, _LEGEND] if any(run.state.get("blocks") for run in runs) else lines)
