"""A copy of a run that was made with hard links (`cp -al`) stays as it is, whichever of the two is trained on."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from tests.integration.training import finish, prepare_small_run, start_small_run, steps_of

LOCKS = ("lock", "luwu.lock")


def contents(folder: Path) -> dict[str, str]:
    """A digest of every file in a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in LOCKS
    }


def copy_with_links(run: Path, copy: Path) -> None:
    subprocess.run(["cp", "-al", str(run), str(copy)], check=True)


@pytest.mark.slow
def test_the_files_beside_the_store_of_a_run_that_goes_on_stay_in_the_copy(tmp_path: Path) -> None:
    folder = prepare_small_run(tmp_path)

    def train(run: str, steps: int) -> None:
        code, _, error = finish(start_small_run(folder, run, "--workers", "1", "--steps", str(steps)))
        assert code == 0, error

    train("run", 4)
    copy_with_links(folder / "run", folder / "copy")
    before = contents(folder / "copy")
    assert {"metrics.jsonl", "worker-0.log", "job.json", "loss.png", "config.toml"} <= set(before)
    train("run", 7)
    after = contents(folder / "copy")
    beside = [name for name in before if not name.startswith("store/")]
    assert [name for name in beside if after[name] != before[name]] == []
    assert len(steps_of(folder, "copy")) == 4
