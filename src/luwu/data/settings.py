"""Settings of a run's data."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from luwu.core.quantities import AbsolutePath, Count, Share
from luwu.core.settings import FIXED, TOML_ONLY, Flag, Group


class DataSettings(Group):
    """The text to learn from, and the share of it that validation uses."""

    path: Annotated[AbsolutePath | None, FIXED, Flag("--data")] = None
    """file or folder to learn from (text, JSONL, Parquet); without it, the Python standard library's source"""
    tokenizer: Annotated[AbsolutePath | None, FIXED] = None
    """tokenizer.json, or a folder with one, that makes tokens of text; without it, every byte is a token"""
    end_token: Annotated[str | None, FIXED] = None
    """token put after each document; without it, the end-of-text token that the tokenizer has"""
    text_field: Annotated[str, FIXED] = "text"
    """field of JSONL, and column of Parquet, that holds the text"""
    validation_fraction: Annotated[Share, FIXED, TOML_ONLY, Field(gt=0.0, le=0.5)] = 0.05
    """share of the text held back for validation"""
    validation_windows: Annotated[Count, TOML_ONLY] = 256
    """sequences of held-back text that validation looks at"""
