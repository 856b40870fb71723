"""The check that a new run gets a folder of its own, before anything is written into one of the user's by mistake."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from luwu.control.frames import SOCKET_NAME
from luwu.core.errors import ConfigError
from luwu.data.corpus import DATA_NAME, SIDECAR_NAME
from luwu.data.preparation import LOCK_NAME as CORPUS_LOCK_NAME
from luwu.data.tokenizer import TOKENIZER_FILE
from luwu.launch.run_paths import RunPaths
from luwu.store.folders import LOCK_NAME

OF_RUNS = (
    LOCK_NAME, CORPUS_LOCK_NAME, f"{DATA_NAME}*", f"{SIDECAR_NAME}*", TOKENIZER_FILE, "store", "worker-*",
    "metrics.jsonl*", "alerts.jsonl", "written.json", "job.key", "loss.png", "throughput.png", "stop", SOCKET_NAME,
)  # fmt: skip
"""Patterns of names in a run folder. Each may be all that is left of a run, or made before it, as an imported store."""

OF_NOBODY = (".*", "lost+found", "*.log")
"""Patterns of names that no user misses a place for: hidden ones, a new disk's own, and a shell's logs."""

_REMEDY = "name an empty folder, or one that does not exist, with --run (nothing was written)"


def require_own(folder: RunPaths, data: str | None = None, given: Iterable[str | Path] = ()) -> None:
    """Check that a folder in which no run was started is one that a run may write into.

    Args:
        folder: the run's folder; one that has a run passes.
        data: the run's text; None: it lies elsewhere.
        given: other files and folders that the user named, which may lie in the run folder.

    Raises:
        ConfigError: the folder is that of the text, lies in it or has it, or has files of something else.
    """
    if any(path.is_file() for path in (folder.config_path, folder.job_path, folder.id_path)):
        return
    if data is not None and (relation := _relation(folder.path.resolve(), Path(data).resolve())):
        raise ConfigError(
            f"--run: expected a folder apart from the text, found {folder.path}, which {relation}; {_REMEDY}"
        )
    try:
        names = [path.name for path in folder.path.iterdir()]
    except OSError:  # there is none, or nobody may read it: making it, or writing into it, says more
        return
    if others := sorted(foreign_names(names, _names_in(folder.path, given))):
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise ConfigError(
            f"--run: expected a run's folder or an empty one, found {folder.path} with {others[0]!r}{more} and no run; "
            f"{_REMEDY}"
        )


def foreign_names(names: Iterable[str], given: Iterable[str] = ()) -> list[str]:
    """Return those of a folder's names that no run writes, and that the user has not named."""
    patterns, given = (*OF_RUNS, *OF_NOBODY), set(given)
    return [name for name in names if name not in given and not any(fnmatch(name, each) for each in patterns)]


def _relation(run: Path, data: Path) -> str:
    if run == data:
        return "is --data itself"
    if run.is_relative_to(data):
        return "lies in --data"
    return "has --data in it" if data.is_relative_to(run) else ""


def _names_in(folder: Path, given: Iterable[str | Path]) -> list[str]:
    """Return the first names, below a folder, of the paths that lie in it."""
    below = (Path(path).absolute() for path in given)
    return [path.relative_to(folder).parts[0] for path in below if path.is_relative_to(folder) and path != folder]
