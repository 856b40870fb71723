"""`luwu help`: explain an error by its code, and list exit statuses."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from luwu.cli.terminal import keep_names_whole, say

if TYPE_CHECKING:
    from luwu.core.error_pages import Page

EXITS = "exit"
"""Topic that lists exit statuses."""

MOST_CHARACTERS = 100
"""Longest line, on a terminal that is wider."""


def explain_error(
    context: typer.Context,
    topic: Annotated[
        str | None, typer.Argument(help="code of an error, such as LUWU-101; a command; or exit, for exit statuses")
    ] = None,
) -> None:
    """Explain an error by its code: what has happened, and what to do.

    Without an argument it lists all codes. `luwu help exit` lists exit statuses, and `luwu help COMMAND` or
    `luwu COMMAND --help` describes a command.
    """
    show_command(context.parent, topic)
    import shutil

    from luwu.core.error_pages import find_page

    width = min(shutil.get_terminal_size().columns, MOST_CHARACTERS)
    if topic is None:
        lines = index_lines(width)
    elif topic.strip().lower() == EXITS:
        lines = exit_lines(width)
    else:
        lines = page_lines(find_page(topic), width)
    for line in lines:
        say(line)


def show_command(parent: Any, topic: str | None) -> None:
    """Show the help of a command and end, if a topic is the name of one."""
    commands = getattr(parent and parent.command, "commands", {})
    if topic in commands:
        keep_names_whole()
        commands[topic].make_context(topic, ["--help"], parent=parent)


def page_lines(page: Page, width: int) -> Iterator[str]:
    """Yield a page as lines of a width in characters."""
    yield f"{page.error.code} {page.error.__name__}: {page.title}"
    yield ""
    yield filled(page.meaning, width)
    for when, remedy in page.cases:
        yield ""
        yield filled(f"- {when}", width, "  ")
        yield filled(remedy, width, "  ", "  ")
    yield ""
    yield f"exit status {page.exit.value}"
    for place in page.more:
        yield f"more: docs/{place}"


def index_lines(width: int) -> Iterator[str]:
    """Yield a line for each code, and how to go on."""
    from luwu.core.error_pages import pages

    for code, page in pages().items():
        yield f"{code}  {page.title}"
    yield ""
    yield filled(
        "luwu help CODE explains one of them, luwu help exit lists exit statuses, and luwu COMMAND --help describes a "
        "command.",
        width,
    )


def exit_lines(width: int) -> Iterator[str]:
    """Yield the exit statuses, each in a paragraph."""
    from luwu.core.exits import statuses

    for status, meaning in statuses().items():
        yield filled(meaning, width, " " * 9, f"{status:9}")
    yield ""
    yield "luwu COMMAND --help says what a status means for that command."


def filled(text: str, width: int, indent: str = "", first: str = "") -> str:
    """Return a text in lines of a width: ``first`` begins the first line, ``indent`` the others. Options stay whole."""
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
