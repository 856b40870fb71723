"""Every input that fuzzing has kept for a Python target, through that target once more, without atheris."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
SUPPORT = ("__init__", "__main__", "cover", "replay", "support")
TARGETS = sorted(file.stem for file in (FUZZ / "python").glob("*.py") if file.stem not in SUPPORT)


@pytest.mark.parametrize("target", TARGETS)
def test_what_fuzzing_found_is_read_or_refused_as_it_should_be(target: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    module = importlib.import_module(f"tests.fuzz.python.{target}")
    inputs = sorted((FUZZ / "corpus" / target).iterdir())
    assert inputs, "a target has a corpus"
    for file in inputs:
        module.test_one_input(file.read_bytes())


def test_every_corpus_has_a_target() -> None:
    native = {file.stem for file in (FUZZ / "native").glob("*.cc")}
    assert {folder.name for folder in (FUZZ / "corpus").iterdir()} == native | set(TARGETS)
