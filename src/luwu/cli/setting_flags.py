"""Flags of declared settings: a command gets an option for each setting of its groups, from the declarations alone.

A command names its flags' place with a parameter ``given``, and gets there what its user gave::

    @setting_flags(ServerFile)
    def server(config: ... = None, *, given: Given, url_file: ... = None) -> None: ...

A flag's type follows from its setting's: a size is text with a unit, a list may be repeated, and a setting that is
true without its flag has a second one, ``--no-NAME``, that turns it off.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from luwu.cli.terminal import help_of
from luwu.core.quantities import absolute, parse_size
from luwu.core.settings import TOML_ONLY, Flag, Group, describe, fields_of, flag_of

Given = dict[str, dict[str, Any]]
"""Values of the flags that a user gave, by group and setting."""

PLACE = "given"
"""Parameter of a command that its settings' flags stand for."""

Command = Callable[..., None]


@dataclass(frozen=True)
class SettingFlag:
    """A setting's option in a command."""

    group: str
    name: str
    flag: Flag
    option: inspect.Parameter

    @property
    def parameter(self) -> str:
        """Name of the flag in the command's signature."""
        return self.option.name

    def value(self, given: Any) -> Any:
        """Return the setting's value; None if the flag was not given. Raises ConfigError."""
        if given is None or given == []:
            return None
        if self.flag.parse is not None:
            return self.flag.parse(given)
        return tuple(given) if isinstance(given, list) else given


def setting_flags(kind: type[Group], *, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Give a command an option for each setting of a kind's groups, except those that are marked `TOML_ONLY`.

    The help has a panel for each group, if there is more than one.

    Args:
        kind: the groups, as of a settings file.
        without: names of settings that the command does not take.

    Raises:
        ValueError: two settings have one flag, or a name in ``without`` is no setting.
        TypeError: a setting has a type that no flag has.
    """
    settings = list(flags_of(kind, without))

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for own in signature.parameters.values():
            here = [setting.option for setting in settings] if own.name == PLACE else [own]
            parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in here]

        @wraps(command)
        def run(**values: Any) -> None:
            given: Given = {setting.group: {} for setting in settings}
            for setting in settings:
                value = setting.value(values.pop(setting.parameter))
                if value is not None:
                    given[setting.group][setting.name] = value
            command(**{PLACE: given}, **values)

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def flags_of(kind: type[Group], without: Collection[str] = ()) -> Iterator[SettingFlag]:
    """Yield the options of a kind's settings in the order of the help; raises as `setting_flags` does."""
    groups = [group for group, field in kind.model_fields.items() if TOML_ONLY not in field.metadata]
    names = [
        (group, name)
        for group in groups
        for name, field in fields_of(kind, group).items()
        if TOML_ONLY not in field.metadata
    ]
    unknown = set(without) - {name for _, name in names}
    if unknown:
        raise ValueError(f"expected names of settings of {kind.__name__}, found {', '.join(sorted(unknown))}")
    seen: set[str] = set()
    for group, name in names:
        if name in without:
            continue
        flag = flag_of(kind, group, name)
        if flag.name in seen:
            raise ValueError(f"{group}.{name}: {flag.name} is the flag of another setting, too; name it with Flag")
        seen.add(flag.name)
        yield SettingFlag(group, name, flag, _option(kind, group, name, flag, group if len(groups) > 1 else None))


def option_of(kind: type[Group], name: str) -> Any:
    """Return the option of one declared setting, with its help, for a command that names it in its signature."""
    return typer.Option(help=help_of(kind.model_fields[name].description or ""))


def _option(kind: type[Group], group: str, name: str, flag: Flag, panel: str | None) -> inspect.Parameter:
    field = fields_of(kind, group)[name]
    wanted = flag_type(field.annotation, field.metadata)
    names = f"{flag.name}/--no-{flag.name.removeprefix('--')}" if wanted is bool else flag.name
    text = describe(group, name, kind) + (f" ({flag.default})" if flag.default else "")
    option = typer.Option(names, help=help_of(text), rich_help_panel=panel, show_default=False)
    parameter = flag.name.removeprefix("--").replace("-", "_")
    return inspect.Parameter(
        parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[wanted | None, option]
    )


def flag_type(annotation: Any, marks: Iterable[object] = ()) -> Any:
    """Return the type of the flag of a setting of this type; raises TypeError for one that no flag has."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return flag_type(inner, [*marks, *more])
    if get_origin(annotation) in (Union, types.UnionType):
        (inner,) = (each for each in get_args(annotation) if each is not type(None))
        return flag_type(inner, marks)
    parsers = {getattr(mark, "func", None) for mark in marks}
    if parse_size in parsers or get_origin(annotation) is Literal:
        return str
    if absolute in parsers:
        return Path
    if get_origin(annotation) is tuple:
        return list[flag_type(get_args(annotation)[0])]  # type: ignore[misc]
    if get_origin(annotation) is dict:
        return list[str]
    if annotation in (bool, int, float, str, Path):
        return annotation
    raise TypeError(f"expected a type of settings that a flag can have, found {annotation}; mark it TOML_ONLY")
