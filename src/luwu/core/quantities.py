"""Quantities of settings: sizes, paths, counts and times, each with its range and its error."""

from __future__ import annotations

import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from luwu.core.errors import ConfigError

SIZE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


SIZE_LIMIT = 2**63
"""Bound of sizes: native code counts bytes in 64 bits."""


def parse_size(value: object) -> int:
    """Return the bytes of a size such as 8GiB or 512 MB, or of an integer.

    Raises:
        ConfigError: it has no unit, or is `SIZE_LIMIT` or more.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        count = value
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
        if match is None or match[2].upper() not in SIZE_UNITS:
            raise ConfigError(
                f"expected a size with its unit, such as 8GiB, 512MiB or 2000000000B, found {shown(value)}"
            )
        count = int(min(Decimal(match[1]), Decimal(SIZE_LIMIT)) * SIZE_UNITS[match[2].upper()])
    if count >= SIZE_LIMIT:
        raise ConfigError(f"expected a size below {format_size(SIZE_LIMIT)}, found {shown(value)}; name a smaller one")
    return count


SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """Return a value for an error's message, cut if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with more than 4300 digits, or tables thousands deep
        text = "what is too long to show"
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def absolute(value: object) -> str:
    """Return the absolute form of a path, so that a saved run means the same from any working directory.

    Raises:
        ConfigError: see `check_name`; or it is no path, or begins with the home folder of a user that is not known.
    """
    if not isinstance(value, str | Path):  # a value of a settings file
        raise ConfigError(f"expected a path, found {shown(value)}")
    if not str(value):
        raise ConfigError("expected a path, found an empty text; is a variable of the shell not set?")
    try:
        path = Path(value).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(
            f"expected a path in a home folder that exists, found {shown(str(value))}; name the folder itself"
        ) from None
    check_name(path)
    return str(path)


def has_utf8(text: str) -> bool:
    """Tell whether a text can be encoded in UTF-8: it has no lone surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def check_name(path: Path) -> None:
    """Refuse a path that settings and native code, which have it in UTF-8, cannot name; raises ConfigError."""
    name = str(path)
    if "\0" in name:
        raise ConfigError(f"expected a path without a zero byte, found {shown(name)}; correct it")
    if not has_utf8(name):
        raise ConfigError(f"expected a path in UTF-8, found {name!a}; rename it, or name a link to it")


def format_size(count: int) -> str:
    """Return a number of bytes in the largest unit that is exact: 8GiB."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count % SIZE_UNITS[unit.upper()] == 0:
            return f"{count // SIZE_UNITS[unit.upper()]}{unit}"
    return f"{count}B"


def absolute_unless_host(value: object) -> str:
    """Return the absolute form of a path; ``host`` stays as it is."""
    return "host" if value == "host" else absolute(value)


Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1, lt=SIZE_LIMIT)]

AbsolutePath = Annotated[str, BeforeValidator(absolute)]


def check_folders(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders that a store is striped over; raises ConfigError if a folder is there twice, by any name."""
    seen: set[str] = set()
    for folder in folders:
        place = os.path.realpath(folder)
        if place in seen:
            raise ConfigError(
                f"expected each folder once, found {folder} there twice; leave it out, or name a folder on another disk"
            )
        seen.add(place)
    return folders


StoreFolders = Annotated[tuple[AbsolutePath, ...], AfterValidator(check_folders)]

Fraction = Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]

Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]

Positive = Annotated[float, Field(gt=0.0, le=1e30, allow_inf_nan=False)]
"""Number above zero that is also one in float32."""

NotNegative = Annotated[float, Field(ge=0.0, le=1e30, allow_inf_nan=False)]

LONGEST_SECONDS = 1e8
"""Bound of times, three years: native code counts nanoseconds in 64 bits."""

Seconds = Annotated[float, Field(gt=0.0, le=LONGEST_SECONDS, allow_inf_nan=False)]

SecondsOrZero = Annotated[float, Field(ge=0.0, le=LONGEST_SECONDS, allow_inf_nan=False)]
"""Number of seconds, like `Seconds`, or 0."""

Count = Annotated[int, Field(ge=1, le=2**53)]
"""Number of things that happen one after another; floats tell all of them apart."""

CountOrZero = Annotated[int, Field(ge=0, le=2**53)]
"""Number of things, like `Count`, or 0."""

Sequences = Annotated[int, Field(ge=1, le=2**24)]
"""Number of sequences that are listed."""

MOST_TOKENS = 2**24
"""Bound of the tokens of a sequence, and of a vocabulary."""

Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]

Workers = Annotated[int, Field(ge=1, le=2**20)]

Layers = Annotated[int, Field(ge=1, le=100_000)]

Width = Annotated[int, Field(ge=1, le=2**20)]

Port = Annotated[int, Field(ge=0, lt=1 << 16)]


Dtype = Literal["float32", "bfloat16", "float16"]
