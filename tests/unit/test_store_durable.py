from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from luwu.core import files
from luwu.core.files import sync_path, whole_file, write_all
from luwu.core.manifest import BlockManifest, Manifest, ParameterManifest
from luwu.errors import StoreError
from luwu.store.folders import StoreIdentity, write_identity


def _refuse(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int) -> None:
    """Let a sync of one folder fail."""
    real = files.sync_folder

    def sync(path: Path) -> None:
        if path == folder:
            raise OSError(number, os.strerror(number))
        real(path)

    monkeypatch.setattr(files, "sync_folder", sync)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EROFS, errno.EACCES])
def test_a_folder_above_that_cannot_be_synced_has_nothing_to_lose(tmp_path, monkeypatch, number) -> None:
    _refuse(monkeypatch, tmp_path.parent, number)
    sync_path(tmp_path)


def test_a_folder_above_that_fails_is_named(tmp_path, monkeypatch) -> None:
    _refuse(monkeypatch, tmp_path.parent, errno.EIO)
    parameter = ParameterManifest("weight", (4096,), 0, 4096)
    manifest = Manifest("float32", 2048, (BlockManifest("layer", True, (parameter,), 2048),))
    with pytest.raises(StoreError, match=rf"cannot sync {tmp_path.parent}: Input/output error"):
        write_identity([tmp_path], StoreIdentity("0" * 32, 1, manifest))


def test_a_file_is_there_whole_or_not_at_all(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(RuntimeError, match="stop"), whole_file(path) as file:
        write_all(file, b"after")
        raise RuntimeError("stop")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with whole_file(path) as file:
        write_all(file, b"after")
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]
