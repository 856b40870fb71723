"""Runs one target under atheris: python -m tests.fuzz.python TARGET [libFuzzer's options] [corpus folders]."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import atheris

INSTRUMENTED = "luwu"
SOURCES = Path(__file__).resolve().parents[3] / "src"


class SourceFinder(MetaPathFinder):
    """Finds the package's sources as files: atheris cannot instrument what an editable install's own loader loads."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the package; the native one is found by others."""
        if fullname.partition(".")[0] != INSTRUMENTED:
            return None
        return PathFinder.find_spec(fullname, path or [str(SOURCES)], target)


def main() -> None:
    """Instrument the package, and run the target until libFuzzer ends it."""
    name = sys.argv[1]
    logging.disable(logging.CRITICAL)  # what is refused is logged; a million lines help nobody
    sys.meta_path.insert(0, SourceFinder())
    with atheris.instrument_imports(include=[INSTRUMENTED]):
        target = importlib.import_module(f"{__package__}.{name}")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target.test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
