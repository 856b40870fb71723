"""Progress of a command on standard error: a bar of bytes, or one stage after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the ``with`` block runs. The yielded function takes bytes done and bytes in all."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None, visible=False)  # until there is something to do
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


@contextmanager
def stages() -> Iterator[Callable[[str], None]]:
    """Show the present stage while the ``with`` block runs: in place on a terminal, elsewhere a line for each."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)
        return
    with console.status("") as status:
        yield status.update


def store_folders(named: list[Path]) -> list[Path]:
    """Return the folders of a store. A single run folder means the run's store, wherever that is.

    Raises:
        ConfigError: the store of a run that was named is not on this machine.
        StoreFormatError: its manifest file is missing.
    """
    from luwu.launch.folder import RunFolder
    from luwu.launch.settings import build_settings
    from luwu.store.folders import MANIFEST_NAME, holds_part

    if len(named) > 1 or (named[0] / MANIFEST_NAME).exists():
        return named
    run, inside = RunFolder(named[0]), named[0] / "store"
    saved = run.saved_settings()
    if saved is not None:
        return run.require_stores(build_settings(saved))
    return [inside] if holds_part(inside) else named
