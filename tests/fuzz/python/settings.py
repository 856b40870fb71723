"""A settings file: refused, or settings that are valid again."""

from __future__ import annotations

from tests.fuzz.python.support import Input, allowing, put, scratch

from luwu.core.settings import read_toml
from luwu.errors import ConfigError
from luwu.launch.settings import Settings, build_settings

BEGINNING = b'[model]\nlayers = 2\nhidden = 64\n[run]\nsteps = 3\n[optimizer]\nname = "adamw"\nlr = '


def test_one_input(data: bytes) -> None:
    given = Input(data)
    path = scratch() / "config.toml"
    mode = given.number()
    put(path, (BEGINNING if mode % 2 else b"") + given.rest(), mode // 2)
    tables = allowing(ConfigError, lambda: read_toml(path))
    if tables is None:
        return
    settings = allowing(ConfigError, lambda: build_settings(tables))
    if settings is None:
        return
    assert Settings.model_validate(settings.model_dump()) == settings, "settings that were read are settings"
