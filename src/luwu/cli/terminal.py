"""Output of commands on a terminal. Names of files and text of models, data and other machines go through here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import typer

from luwu.observe.words import printable

GO_BACK = "Where `luwu snapshot list` shows a snapshot of this store, `luwu snapshot restore` goes back to it"
"""The way out of damage in a store."""


def say(text: str, *, end: bool = True) -> None:
    """Write text to standard output; ``end``: with the end of the line."""
    typer.echo(printable(text), nl=end)


def say_rows(rows: Sequence[tuple[str, str]], least_width: int = 0) -> None:
    """Write names and their values, a line each; no path is cut off, however narrow the terminal."""
    width = max([least_width, *(len(name) for name, _ in rows)])
    for name, value in rows:
        say(f"{name:{width}}  {value}")


def add_rows(table: Any, rows: Iterable[tuple[Any, ...]]) -> None:
    """Add rows to a table of rich. Markup in text, such as ``[red]``, is shown as it is; rich's own Text stays."""
    from rich.text import Text

    for cells in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in cells))
