"""Show a run while it goes: a live panel on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from luwu.core.units import bytes_text
from luwu.core.words import printable
from luwu.observe.meter import Meter

PLAIN_SECONDS = 5.0
"""Least seconds between two plain lines."""

Traffic = Mapping[str, int | float]


class Display(Protocol):
    """Interface of what the launcher shows to the user."""

    def __enter__(self) -> Display:
        """Start showing."""

    def __exit__(self, *exception: object) -> None:
        """Stop showing and leave the last state behind."""

    def say(self, text: str) -> None:
        """Show a line that stays."""

    def stage(self, text: str, detail: str = "") -> None:
        """Show the present stage and its progress."""

    def step(self, meter: Meter, server: Traffic) -> None:
        """Show the state after a step; `server` holds the server's stats."""

    def alerts(self, standing: Mapping[str, str]) -> None:
        """Show the sentences of the alerts that are raised now, by name; `say` has told what has changed."""


def choose_display(console: Console, steps: int) -> Display:
    """A live panel if the console is a terminal, otherwise plain lines without control codes."""
    return LiveDisplay(console, steps) if console.is_terminal else PlainDisplay(console)


class PlainDisplay:
    """Lines, the first and the last step and one every few seconds between them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_at = 0.0
        self._now = ""
        self._detail_at = 0.0

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def say(self, text: str) -> None:
        """Write a line."""
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def stage(self, text: str, detail: str = "") -> None:
        """Write the stage once, even if it is told again, and then how far it is, if the last line is old enough."""
        now = time.monotonic()
        if text == self._now and (not detail or now - self._detail_at < PLAIN_SECONDS):
            return
        self.say(f"{text} {detail}" if text == self._now else text)
        self._now, self._detail_at = text, now

    def step(self, meter: Meter, server: Traffic) -> None:
        """Write the figures if the last line is old enough."""
        last = meter.last
        now = time.monotonic()
        if last is None or (now - self._shown_at < PLAIN_SECONDS and last.step < meter.steps):
            return
        self._shown_at = now
        self.say("  ".join(f"{name} {value}" for name, value in figures(meter, server)))

    def alerts(self, standing: Mapping[str, str]) -> None:
        """Write nothing: the lines before have told it."""


class LiveDisplay:
    """A panel redrawn in place: a bar of steps over a table of figures."""

    def __init__(self, console: Console, steps: int) -> None:
        self._steps = steps
        self._stage = "starting"
        self._done = 0
        self._figures: list[tuple[str, str]] = []
        self._alerts: list[str] = []
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._figures = [(name, value) for name, value in self._figures if name != "left"]
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the panel."""
        self._live.console.print(printable(text), highlight=False, markup=False)

    def stage(self, text: str, detail: str = "") -> None:
        """Name the stage in the panel."""
        self._stage = printable(f"{text} {detail}")

    def step(self, meter: Meter, server: Traffic) -> None:
        """Put new figures into the panel."""
        assert meter.last is not None
        self._done = meter.last.step
        self._figures = figures(meter, server)

    def alerts(self, standing: Mapping[str, str]) -> None:
        """Keep a line of the alerts in the panel."""
        self._alerts = [printable(text) for text in standing.values()]

    def _render(self) -> Group:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=self._steps, completed=self._done, width=40),
            Text(f"{100 * self._done / self._steps:.0f} %", style="bold"),
            Text(self._stage, style="dim"),
        )
        table = Table.grid(padding=(0, 3))
        for first in range(0, len(self._figures), 3):
            cells = self._figures[first : first + 3]
            table.add_row(*(Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in cells))
        alerts = [Text(f"alert: {'; '.join(self._alerts)}", style="bold red")] if self._alerts else []
        return Group(bar, table, *alerts)


def figures(meter: Meter, server: Traffic) -> list[tuple[str, str]]:
    """The figures of a run by name, as text with units."""
    last = meter.last
    assert last is not None
    shown = [
        ("step", f"{last.step}/{meter.steps}"),
        ("loss", f"{last.loss:.3f}"),
        ("tokens/s", f"{meter.tokens_per_second():,.0f}"),
        ("left", duration(meter.seconds_left())),
        ("pulled", bytes_text(last.bytes_pulled)),
        ("pushed", bytes_text(last.bytes_pushed)),
    ]
    if server:  # else the store is another machine's
        read, written = bytes_text(server["bytes_read"]), bytes_text(server["bytes_written"])
        shown += [("store read", read), ("store written", written)]
    shown.append(("communication hidden", f"{100 * meter.hidden():.0f} %"))
    if last.loss_scale is not None:
        shown.append(("loss scale", f"{last.loss_scale:g}"))
    if (at_stake := server.get("unwritten", 0)) > 1:
        durable = f"step {server['step'] - meter.first_step - at_stake:,}, {server['since_commit_seconds']:.0f} s ago"
        shown.append(("last on the disk", durable))
    if meter.rolled_back:
        shown.append(("rolled back", str(meter.rolled_back)))
    return shown


def duration(seconds: float) -> str:
    """Seconds in words: 3m05s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
