"""Quantities with their units, as people write them.

A number without its unit is refused, because it may mean anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from luwu.core.errors import ConfigError
from luwu.core.quantities import SIZE_UNITS

_PREFIXES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BYTES = {unit: float(scale) for unit, scale in SIZE_UNITS.items()}
_RATES = {f"{unit}/S": scale for unit, scale in _BYTES.items()}
_BIT_RATES = {f"{prefix}{unit}": scale / 8 for prefix, scale in _PREFIXES.items() for unit in ("BPS", "BIT/S")}
_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def parse_bytes(value: object) -> int:
    """Bytes in a size such as 512GiB; ConfigError without a unit. A number that is none of a user's text is bytes."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(value)
    return int(_parse(value, _BYTES, "a size with its unit, such as 512GiB or 3.84TB"))


def parse_endurance(value: object) -> int:
    """Bytes that a disk may take in its life, such as 600TBW; ConfigError without a unit, or for 0."""
    text = str(value).strip()
    try:
        found = parse_bytes(text[:-1] if text[-2:].upper() == "BW" else text)
    except ConfigError:
        found = 0
    if found <= 0:
        raise ConfigError(f"expected an endurance in GBW or TBW, such as 600TBW, found {value!r}")
    return found


def parse_rate(value: object) -> float:
    """Bytes a second in a rate such as 100Gbps or 12.5GB/s; ConfigError without a unit."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    text = str(value).strip()
    # Of "Gb/s" only the case tells bits from bytes.
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTkmgt]?)b/s", text):
        return float(match[1]) * _PREFIXES[match[2].upper()] / 8
    return _parse(text, _BIT_RATES | _RATES, "a rate with its unit, such as 100Gbps (bits) or 12.5GB/s (bytes)")


def parse_count(value: object) -> float:
    """A count such as 300B, 1.5T or 20000; ConfigError for anything else."""
    return _parse(value, _COUNTS, "a count such as 20M, 300B or 1.4T")


def _parse(value: object, units: Mapping[str, float], expected: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z/]*)\s*", str(value))
    if match is None or match[2].upper() not in units:
        raise ConfigError(f"expected {expected}, found {value!r}")
    return float(match[1]) * units[match[2].upper()]


def rate_text(bytes_per_second: float) -> str:
    """A rate in words: 12.5 GB/s."""
    return f"{amount(bytes_per_second)}B/s"


def bit_rate_text(bytes_per_second: float) -> str:
    """A link's rate as `parse_rate` takes it: 9.41Gbps."""
    return f"{amount(8 * bytes_per_second).replace(' ', '')}bps"


def bytes_text(count: float) -> str:
    """Bytes in words, by thousands as disks and links are sold: 2.45 TB."""
    return f"{amount(count)}B"


def memory_text(count: float) -> str:
    """Bytes of memory in words, by powers of two as memory is sold: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def count_text(count: float) -> str:
    """A count of parameters or tokens in words: 175B, 1.4T."""
    for suffix in ("", "K", "M", "B"):
        if abs(count) < 999.5:
            return f"{count:.3g}{suffix}"
        count /= 1000
    return f"{count:,.4g}T"


def share_text(share: float) -> str:
    """A share of what is used up slowly, in percent: 0.12%, 50%; under 0.01% for less."""
    percent = 100 * share
    return "under 0.01%" if percent < 0.01 else f"{percent:.2g}%" if percent < 10 else f"{percent:,.0f}%"


def amount(value: float) -> str:
    """A number with three digits and the prefix of its thousands: ``12.5 G``."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:,.4g} P"


_TIMES = ((1e-3, 1e-6, "us"), (0.9995, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h"))


def seconds_text(seconds: float) -> str:
    """A time in words: 35 ms, 12.4 s, 3.2 h, 15 days."""
    for limit, scale, unit in _TIMES:
        if seconds < limit:
            return f"{seconds / scale:.3g} {unit}"
    days = seconds / 86400
    return f"{days:.3g} days" if days < 999.5 else f"{days:,.0f} days"
