"""Files that a copy made with hard links (`cp -al`) shares: they are replaced before they are written to.

A file that is made under a name of its own and then renamed needs `drop_shared` for that name alone: a crash may have
left it, and the copy may have it.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path


def drop_shared(path: Path) -> None:
    """Before a file is written from its beginning: remove this name of it where it has another one."""
    with suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            path.unlink()


def unshare(path: Path) -> None:
    """Before a file is appended to or changed in place: put a copy in its place where it has another name."""
    with suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            own = path.with_name(path.name + ".own")
            own.unlink(missing_ok=True)
            shutil.copy2(path, own)
            own.replace(path)
