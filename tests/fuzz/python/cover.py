"""Adds to a Python target's corpus: python -m tests.fuzz.python.cover TARGET CORPUS NEW...

Copies as few of the new inputs as are needed to run every line of the package that they run and the corpus does not. A
finding's input is left out.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Line = tuple[str, int, int]

PACKAGE = str(Path(__file__).resolve().parents[3] / "src" / "luwu")


def lines_run(act: Any, data: bytes) -> set[Line] | None:
    """Run a target on one input and return the steps from line to line in the package; None where it fails."""
    found: set[Line] = set()
    last: dict[CodeType, int] = {}

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            code, line = frame.f_code, frame.f_lineno
            found.add((code.co_filename + code.co_name, last.get(code, 0), line))
            last[code] = line
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        last[frame.f_code] = 0
        return local

    sys.settrace(enter)
    threading.settrace(enter)
    try:
        act(data)
    except Exception:
        return None
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    return found


def inputs(folders: list[Path]) -> Iterator[bytes]:
    """Every input once, short ones first."""
    contents = {file.read_bytes() for folder in folders if folder.is_dir() for file in folder.iterdir()}
    yield from sorted(contents, key=lambda content: (len(content), content))


def main() -> None:
    """Choose and copy."""
    target, corpus, *folders = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    act = importlib.import_module(f"{__package__}.{target}").test_one_input
    act(b"")  # what is imported or cached at the first time does not count
    reached: set[Line] = set()
    for content in inputs([Path(corpus)]):
        reached |= lines_run(act, content) or set()
    covered = {
        content: lines - reached for content in inputs(list(map(Path, folders))) if (lines := lines_run(act, content))
    }
    missing = set().union(*covered.values())
    while missing:
        best = max(covered, key=lambda content: (len(covered[content] & missing), -len(content)))
        missing -= covered.pop(best)
        Path(corpus, hashlib.sha1(best).hexdigest()).write_bytes(best)


if __name__ == "__main__":
    main()
