"""Reads a model's config.json, which may be damaged or made up; what transformers makes of it comes after. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from luwu.core.errors import ConfigError
from luwu.core.json_fields import MALFORMED, explained, read_object, read_text
from luwu.core.quantities import has_utf8, shown

DEEPEST = 32
"""Bound of the tables and lists within each other."""

MOST_PARTS = 2**16
"""Bound of what a model is built of, part by part: it takes memory and time before any parameter does."""

_PARTS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_local_experts",
    "num_experts", "n_routed_experts", "num_labels",
)  # fmt: skip


def read_config_file(file: Path, setting: str) -> dict[str, Any]:
    """Read a model's configuration as a table whose text can be shown and whose parts can be counted.

    Args:
        file: a config.json.
        setting: the setting that names the file, for messages.

    Raises:
        ConfigError: the file cannot be read, or is no such table; names the file and the field.
    """
    try:
        raw = dict(read_object(read_text(file)))
        _check(raw, "", 0)
        text = raw.get("text_config")
        if text is not None and not isinstance(text, dict):
            raise ValueError(f"text_config {shown(text)}, which is no object")
    except OSError as error:
        raise ConfigError(f"{setting}: {file}: cannot be read: {error.strerror}; check the path") from error
    except MALFORMED as error:
        raise ConfigError(
            f"{setting}: {file}: expected the JSON object that describes a model, found {explained(error)}; correct "
            "the file"
        ) from None
    return raw


def text_fields(raw: dict[str, Any]) -> dict[str, Any]:
    """The table with the language model's fields: the configuration itself, or a part of it."""
    found: dict[str, Any] = raw.get("text_config") or raw
    return found


def _check(value: object, name: str, depth: int) -> None:
    """Raise ValueError with the field's name where a value, or one inside it, is out of bounds."""
    if depth > DEEPEST:
        raise ValueError(f"{name} deeper than {DEEPEST} tables or lists")
    if isinstance(value, dict):
        for key, inside in value.items():
            if not has_utf8(key):
                raise ValueError(f"{name or 'the object'} with the name {shown(key)}, which is no text")
            _check(inside, f"{name}.{key}" if name else key, depth + 1)
    elif isinstance(value, list):
        for number, inside in enumerate(value):
            _check(inside, f"{name}.{number}", depth + 1)
    elif isinstance(value, str):
        if not has_utf8(value):
            raise ValueError(f"{name} {shown(value)}, which is no text")
    elif isinstance(value, int) and name.rpartition(".")[2] in _PARTS and value > MOST_PARTS:
        raise ValueError(f"{name} {shown(value)}, which is more than {MOST_PARTS}")
