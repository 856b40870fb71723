"""Output of commands on a terminal. Names of files and text of models, data and other machines go through here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from luwu.core.words import printable

AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of text; docs/json.md lists its keys")]
"""Option of every command that prints facts."""

GO_BACK = "Where `luwu snapshot list` shows a snapshot of this store, `luwu snapshot restore` goes back to it"
"""Advice on a damaged store."""

OPTION_CELLS = 6
"""Cells of an option in typer's help: names, short names, names and short names that turn it off, type, help."""

TYPE_OF_FLAG = "<bool>"
"""Type that typer's help shows of an option without a value."""


def say(text: str, *, end: bool = True) -> None:
    """Write text to standard output; ``end``: with the end of the line."""
    typer.echo(printable(text), nl=end)


def say_json(facts: Any, *, indent: int | None = 1) -> None:
    """Write facts as JSON; numbers that are not finite, which JSON does not have, are null."""
    say(json.dumps(_finite(facts), indent=indent, default=str))


def _finite(facts: Any) -> Any:
    if isinstance(facts, dict):
        return {name: _finite(value) for name, value in facts.items()}
    if isinstance(facts, (list, tuple)):
        return [_finite(value) for value in facts]
    return None if isinstance(facts, float) and not math.isfinite(facts) else facts


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


def help_of(text: str) -> str:
    """Return the help of an option in markdown, which would swallow a name such as ``<root>``."""
    return text.replace("<", "\\<")


def keep_names_whole() -> None:
    """Have help break its sentences, never cut the name of an option, and show no value of an option that takes none.

    A flag that turns a setting off stands below the one that turns it on, because a column of its own takes the room
    of the sentences.
    """
    from rich.table import Table
    from rich.text import Text
    from typer import rich_utils

    class NamesWhole(Table):
        """Table in which only the last column, of sentences, shrinks."""

        def add_row(self, *cells: Any, **named: Any) -> None:
            if len(cells) >= OPTION_CELLS and str(cells[-2]) == TYPE_OF_FLAG:
                cells = (*cells[:-2], Text(), cells[-1])
            if len(cells) >= OPTION_CELLS and str(cells[-4]):
                names = Text("\n").join([cells[-6], cells[-4]])
                cells = (*cells[:-6], names, cells[-5], Text(), *cells[-3:])
            super().add_row(*cells, **named)
            for column in self.columns[:-1]:
                column.no_wrap = True

    rich_utils.Table = NamesWhole  # type: ignore[attr-defined]
