"""Groups of typed settings: one source for the TOML file, the command line and the documentation.

Each room declares its settings once, beside what they configure, with their meaning below them. A setting marked
`FIXED` decides which numbers a run computes, so a run that is resumed must keep it; the others may change between two
starts of the same run. Each setting gets a flag from its declaration (`luwu.cli.setting_flags`): its name, type, help
and default. `Flag` says where the flag differs; a setting or a group marked `TOML_ONLY` gets none. Settings that
several groups have stand in a group that these inherit from.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from luwu.core.errors import ConfigError
from luwu.core.quantities import format_size, parse_size, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


FIXED = "fixed"
"""Mark of a setting that a resumed run must keep."""

TOML_ONLY = "toml only"
"""Mark of a setting, or of a whole group, that no flag sets."""


@dataclass(frozen=True)
class Flag:
    """Mark of a setting whose flag differs from what its declaration gives.

    Args:
        name: name of the flag; default: ``--`` and the setting's name.
        default: text of the default value in the help; default: the value itself.
        parse: makes the value of the words given, for a flag that may be repeated.
    """

    name: str = ""
    default: str = ""
    parse: Callable[[list[str]], object] | None = None


class Group(BaseModel):
    """A group of settings. Unknown names and values of other types are refused; the text below a field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, strict=True)


GroupT = TypeVar("GroupT", bound=Group)


def build(kind: type[GroupT], *overlays: Mapping[str, Mapping[str, Any]]) -> GroupT:
    """Build any group of groups, as `build_settings` does."""
    merged: dict[str, dict[str, Any]] = {}
    for overlay in overlays:
        for group, values in overlay.items():
            if not isinstance(values, Mapping):
                raise _no_table(kind, group, values)
            lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
            merged.setdefault(group, {}).update({**values, **lists})
    try:
        return kind.model_validate(merged)
    except ValidationError as error:
        raise _config_error(kind, error) from None


def _no_table(kind: type[Group], name: str, value: object) -> ConfigError:
    """Return the error of a value in the place of a table, which may be a setting of some table."""
    if name in kind.model_fields:
        return ConfigError(f"{name}: expected a table of settings such as [{name}], found {shown(value)}")
    tables = " or ".join(f"[{group}]" for group in kind.model_fields if name in fields_of(kind, group))
    if tables:
        return ConfigError(f"{name}: belongs under {tables}, found {shown(value)} outside of tables; move it there")
    return ConfigError(
        f"{name}: no such setting; expected tables: {', '.join(f'[{group}]' for group in kind.model_fields)}"
    )


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a settings file; ConfigError if it cannot be read or is not TOML."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"settings file {path}: cannot be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"settings file {path}: expected TOML in UTF-8, found {error}; correct the file") from None
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"settings file {path}: expected TOML, found a mistake: {error}{_line_of(text, str(error))}"
        ) from None
    except (ValueError, RecursionError):
        raise ConfigError(
            f"settings file {path}: expected TOML of settings, found a number of thousands of digits or lists "
            "thousands deep; correct the file"
        ) from None


def _line_of(text: str, mistake: str) -> str:
    """Return the line that TOML's error message names, with a mark below its column; empty if it names none."""
    place = re.search(r"\(at line (\d+), column (\d+)\)", mistake)
    lines = text.splitlines()
    if place is None or not 0 < int(place[1]) <= len(lines):
        return ""
    line = lines[int(place[1]) - 1].replace("\t", " ")
    return f"\n  {line}\n  {' ' * (int(place[2]) - 1)}^"


def to_toml(settings: Group) -> str:
    """Return the settings as a TOML file that explains each of them."""
    lines: list[str] = []
    for group_name, group in settings:
        lines.append(f"[{group_name}]")
        for name in fields_of(type(settings), group_name):
            value = getattr(group, name)
            lines.append(f"# {describe(group_name, name, type(settings))}")
            shown = format_size(value) if is_size(type(settings), group_name, name) else value
            lines.append(f"# {name} = (not set)" if value is None else f"{name} = {_toml_value(shown)}")
        lines.append("")
    return "\n".join(lines)


def describe(group: str, name: str, kind: type[Group]) -> str:
    """Return the meaning of one setting, as declared with it."""
    return fields_of(kind, group)[name].description or ""


def default_text(kind: type[Group], group: str, name: str) -> str:
    """Return the default of one setting as a user would write it; empty if it has none or the machine decides it."""
    field = fields_of(kind, group)[name]
    value = field.default
    if field.is_required() or field.default_factory is not None or value in (None, "", (), {}):
        return ""
    if is_size(kind, group, name):
        return format_size(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def flag_of(kind: type[Group], group: str, name: str) -> Flag:
    """Return the flag of one setting, with its name and the text of its default filled in."""
    field = fields_of(kind, group)[name]
    mark = next((mark for mark in field.metadata if isinstance(mark, Flag)), Flag())
    flag = mark.name or f"--{name.replace('_', '-')}"
    return replace(mark, name=flag, default=mark.default or default_text(kind, group, name))


def is_size(kind: type[Group], group: str, name: str) -> bool:
    """Return True if a setting counts bytes, which people write with a unit."""
    return any(getattr(mark, "func", None) is parse_size for mark in fields_of(kind, group)[name].metadata)


def fields_of(kind: type[Group], group: str) -> Mapping[str, FieldInfo]:
    """Return the settings of a group, or the groups if no group has this name.

    Their order is that of the help and of the file: a group's own settings, then those of each group that it inherits
    from.
    """
    if group not in kind.model_fields:
        return kind.model_fields
    found = kind.model_fields[group].annotation
    assert isinstance(found, type) and issubclass(found, Group)
    names = [name for each in found.__mro__ for name in inspect.get_annotations(each)]
    return {name: found.model_fields[name] for name in names if name in found.model_fields}


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped) + '"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_value(name)} = {_toml_value(item)}" for name, item in value.items()) + "}"
    return repr(value)


def _config_error(kind: type[Group], error: ValidationError) -> ConfigError:
    """Return the first complaint of pydantic as a ConfigError in our own words."""
    first = error.errors()[0]
    where = first["loc"][:-2] if first["loc"][-1:] == ("[key]",) else first["loc"]
    place = ".".join(str(part) for part in where if not isinstance(part, int))
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):
        text = str(inner)
        return ConfigError(
            text if text.startswith(tuple(f"{group}." for group in kind.model_fields)) else f"{place}: {text}"
        )
    if first["type"] == "extra_forbidden":
        known = fields_of(kind, str(first["loc"][0]))
        return ConfigError(f"{place}: no such setting; expected one of {', '.join(known)}")
    ways = _ways_to_set(kind, where)
    if first["type"] == "missing":
        return ConfigError(f"{place}: expected a value, found none; give {ways}")
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    for words, plain in BOUNDS.items():
        expected = expected.replace(words, plain)
    return ConfigError(f"{place}: expected {expected}, found {shown(first['input'])}; change {ways}")


BOUNDS = {"greater than or equal to": "at least", "less than or equal to": "at most"}
"""Words of pydantic's, and plainer ones."""


def _ways_to_set(kind: type[Group], where: Sequence[str | int]) -> str:
    """Return the flag of a setting, if it has one, and its place in a settings file."""
    group, name = (str(part) for part in (*where, "", "")[:2])
    in_file = f"{name} under [{group}] in the settings file" if name else f"{group} in the settings file"
    if group not in kind.model_fields or name not in fields_of(kind, group):
        return in_file
    marks = (*kind.model_fields[group].metadata, *fields_of(kind, group)[name].metadata)
    return in_file if TOML_ONLY in marks else f"{flag_of(kind, group, name).name}, or {in_file}"
