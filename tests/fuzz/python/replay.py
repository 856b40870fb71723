"""Runs a target's corpus, for a program that watches which lines run."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path

CORPUS = Path(__file__).resolve().parents[1] / "corpus"


def main(target: str) -> None:
    """Run every input of the corpus."""
    logging.disable(logging.CRITICAL)
    module = importlib.import_module(f"{__package__}.{target}")
    for file in sorted((CORPUS / target).iterdir()):
        module.test_one_input(file.read_bytes())
