"""Pages of errors, from error_pages.toml: `luwu help CODE` prints one, and docs/errors.md has all."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple

from luwu.core import errors
from luwu.core.errors import ConfigError, LuwuError
from luwu.core.exits import Exit
from luwu.core.room import WaitStoppedError
from luwu.core.settings import read_toml

ERRORS: tuple[type[LuwuError], ...] = (
    *(getattr(errors, name) for name in errors.__all__ if name.endswith("Error")),
    WaitStoppedError,
)
"""Classes of all errors."""

LEAST_LIKENESS = 0.5
"""Likeness, from 0 to 1, of what was asked for to a code or a class that is named as near."""


class Case(NamedTuple):
    """A situation with an error, and what to do then."""

    when: str
    remedy: str


class Page(NamedTuple):
    """Page of an error.

    Attributes:
        error: the class; its docstring says when it is raised.
        title: what has happened, in a few words.
        cases: situations, the most frequent one first.
        more: pages of docs/ that say more, each perhaps with an anchor.
        exit: exit status of a command that ends with this error.
    """

    error: type[LuwuError]
    title: str
    cases: tuple[Case, ...]
    more: tuple[str, ...]
    exit: Exit

    @property
    def meaning(self) -> str:
        """Sentence that says when the error is raised."""
        return (self.error.__doc__ or "").partition("\n")[0]


@cache
def pages() -> dict[str, Page]:
    """Return the page of each error by its code, in the order of codes."""
    told = read_toml(Path(__file__).with_suffix(".toml"))
    return {
        error.code: Page(
            error,
            page["title"],
            tuple(Case(*case) for case in page["cases"]),
            tuple(page.get("more", ())),
            Exit[page.get("exit", Exit.FAILED.name)],
        )
        for error in sorted(ERRORS, key=lambda error: error.code)
        for page in [told[error.code]]
    }


def find_page(wanted: str) -> Page:
    """Return the page of an error by its code, with or without ``LUWU-``, or by its class, in any case.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    by_name = {name.lower(): page for code, page in pages().items() for name in (code, page.error.__name__)}
    name = wanted.strip().lower()
    name = f"luwu-{name}" if name.isdecimal() else name
    if name in by_name:
        return by_name[name]
    near = [by_name[each].error.code for each in get_close_matches(name, by_name, cutoff=LEAST_LIKENESS)]
    nearest = f"; the nearest: {', '.join(dict.fromkeys(near))}" if near else ""
    raise ConfigError(
        f"luwu help: expected exit or the code of an error, such as {ConfigError.code}, found {wanted!r}{nearest}; "
        "luwu help lists all, and luwu COMMAND --help describes a command"
    )
