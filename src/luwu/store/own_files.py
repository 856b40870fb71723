"""Replaces files that a copy made with hard links (`cp -al`) shares, before they are written to.

A file that is made under another name and then renamed needs `drop_shared` only for that other name: a crash may have
left a file with it, and the copy may share that file.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path


def drop_shared(path: Path) -> None:
    """Remove this name of a file that has another one; call it before the file is written from its beginning."""
    with suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            path.unlink()


def unshare(path: Path) -> None:
    """Replace a file that has another name by a copy; call it before the file is appended to or changed in place."""
    with suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            own = path.with_name(path.name + ".own")
            own.unlink(missing_ok=True)
            shutil.copy2(path, own)
            own.replace(path)
