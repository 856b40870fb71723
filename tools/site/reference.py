"""Pages of the reference, made from the sources: the Python API, the commands and the settings."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from luwu.core.quantities import parse_size
from luwu.core.settings import FIXED, TOML_ONLY, Group, default_text, describe, fields_of, flag_of
from luwu.launch.settings import Settings
from luwu.server.settings import ServerFile
from luwu.switch.settings import SwitchFile

PACKAGES = ("luwu", "luwu.data", "luwu.errors")
"""Packages that name what is public in `__all__`."""

MODULES = (
    "luwu.optim.optimizer",
    "luwu.integrations.trainer",
    "luwu.integrations.lightning",
    "luwu.integrations.ray",
    "luwu.integrations.prometheus",
    "luwu.models.importing",
    "luwu.store.exporting",
    "luwu.store.dcp_output",
    "luwu.store.upkeep",
    "luwu.store.verifying",
    "luwu.control.timeouts",
)
"""Other modules that pages tell programs to call."""

COMMANDS: tuple[tuple[str, type[Group]], ...] = (
    ("luwu train", Settings),
    ("luwu server", ServerFile),
    ("luwu switch", SwitchFile),
)
"""Commands with a settings file, and its tables."""

INTRODUCTION = """\
A command takes its settings from flags, and from a TOML file (`--config FILE.toml`). Flags win. A size is text with its
unit, such as `8GiB`, or an integer that counts bytes. Settings marked *fixed* decide what a run computes: a run that is
resumed keeps them."""

WORDS = {bool: "true or false", int: "integer", float: "number"}
"""Types of settings in the words of the pages; all others are text."""


def python_page() -> str:
    """Return the page of the Python API: Sphinx's autodoc takes it from the docstrings."""
    lines = ["# Python", "", "Programs may import everything here. All other modules may change.", ""]
    for package in PACKAGES:
        names = import_module(package).__all__
        lines += _section(package, "no-members", [line for name in names for line in _directive(package, name)])
    for module in MODULES:
        lines += _section(module, "members", [])
    return "\n".join(lines)


def _section(module: str, option: str, more: list[str]) -> list[str]:
    return [f"## {module}", "", "```{eval-rst}", f".. automodule:: {module}", f"   :{option}:", "", *more, "```", ""]


def _directive(package: str, name: str) -> list[str]:
    found = getattr(import_module(package), name)
    kind = "exception" if isinstance(found, type) and issubclass(found, Exception) else "class"
    if not isinstance(found, type):
        kind = "function" if callable(found) else "data"
    members = ["   :members:"] if kind == "class" else []
    return [f".. auto{kind}:: {package}.{name}", *members, ""]


def commands_page() -> str:
    """Return the page of the commands, in Markdown, as typer writes it from their help."""
    command = [sys.executable, "-m", "typer", "luwu.cli.main", "utils", "docs", "--name", "luwu"]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return text.replace("# `luwu`", "# Commands", 1)


def settings_page() -> str:
    """Return the page of all settings files: a table for each of their tables."""
    lines = ["# Settings", "", INTRODUCTION]
    for command, kind in COMMANDS:
        lines += ["", f"## `{command}`"]
        for group in kind.model_fields:
            lines += ["", f"### `[{group}]` of `{command}`", "", "| setting | flag | type | default | meaning |"]
            lines += ["|---|---|---|---|---|", *(_row(kind, group, name) for name in fields_of(kind, group))]
    return "\n".join(lines) + "\n"


def _row(kind: type[Group], group: str, name: str) -> str:
    field = fields_of(kind, group)[name]
    marks = (*kind.model_fields[group].metadata, *field.metadata)
    flag = "" if TOML_ONLY in marks else f"`{flag_of(kind, group, name).name}`"
    default = default_text(kind, group, name)
    meaning = " ".join(describe(group, name, kind).split()).replace("|", "\\|").replace("<", "\\<")
    cells = [f"`{name}`", flag, type_words(field.annotation, field.metadata), f"`{default}`" if default else "",
             meaning + (" (*fixed*)" if FIXED in field.metadata else "")]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def type_words(annotation: Any, marks: Iterable[object] = ()) -> str:
    """Return the type of a setting in words."""
    if any(getattr(mark, "func", None) is parse_size for mark in marks):
        return "size"
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(inner[0], inner[1:])
    if origin in (Union, types.UnionType):
        return type_words(next(each for each in inner if each is not type(None)), marks)
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in inner)
    if origin is tuple:
        return "list of text"
    if origin is dict:
        return "table"
    return WORDS.get(annotation, "text")


def pages() -> Iterator[tuple[str, str, str]]:
    """Yield title, place on the site and text of each page."""
    yield "Python", "reference/python.md", python_page()
    yield "Commands", "reference/commands.md", commands_page()
    yield "Settings", "reference/settings.md", settings_page()
