"""A model's checkpoint in safetensors: one file, or shards with an index, as ``save_pretrained`` writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from luwu.core.errors import CheckpointError
from luwu.store.safetensors_file import SafetensorsFile

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
_INDEX_SUFFIX = ".safetensors.index.json"
_MANY = 5  # names that a message lists


class CheckpointReader:
    """Reads the tensors of a checkpoint, whole or in parts; nothing is kept in memory.

    Opening looks at every shard: that it is there, that its header makes sense, that it is as long as the header says,
    and that each tensor is in one shard alone.

    Args:
        path: a ``.safetensors`` file, a ``.safetensors.index.json`` file, or a folder with one of them; of several in
            the folder, those called ``model`` are meant.

    Raises:
        CheckpointError: names the file or the tensor, what was expected, what was found, and what to do.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        chosen = _choose(self.path)
        self._file_of: dict[str, SafetensorsFile] = {}
        if chosen.name.endswith(_INDEX_SUFFIX):
            self._files = self._open_shards(chosen)
        else:
            self._files = [SafetensorsFile(chosen)]
            self._file_of = dict.fromkeys(self._files[0].tensors, self._files[0])

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give file descriptors back; reading opens them again."""
        for file in self._files:
            file.close()

    @property
    def files(self) -> tuple[Path, ...]:
        """The safetensors files, in the order of their names."""
        return tuple(file.path for file in self._files)

    def names(self) -> tuple[str, ...]:
        """Every tensor that has bytes here, shard by shard as they lie."""
        return tuple(self._file_of)

    def aliases(self) -> dict[str, str]:
        """Tied names that were left out when the file was saved, each with the name that has the bytes.

        ``safetensors.torch.save_model`` notes them; ``save_pretrained`` does not: there the model's class knows them.
        """
        return {
            name: target
            for file in self._files
            for name, target in file.metadata.items()
            if name not in self._file_of and target in self._file_of
        }

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape; raises CheckpointError where there is none of this name."""
        return self._find(name).tensors[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """A tensor's dtype; raises CheckpointError where there is none of this name."""
        return self._find(name).tensors[name].dtype

    def read(self, name: str) -> Tensor:
        """A whole tensor, in its own dtype, on the CPU.

        Raises:
            CheckpointError: there is none of this name, or its file cannot be read any more.
        """
        place = self._find(name).tensors[name]
        return self.read_range(name, 0, place.numel).view(place.shape)

    def read_range(self, name: str, first: int, count: int) -> Tensor:
        """Elements ``first`` to ``first + count`` of a tensor seen as flat, in its own dtype; takes only their memory.

        Raises:
            CheckpointError: there is no such tensor or range, or its file cannot be read any more.
        """
        file = self._find(name)
        numel = file.tensors[name].numel
        if first < 0 or count < 0 or first + count > numel:
            raise CheckpointError(
                f"{file.path}: tensor {name}: expected a range of its {numel} elements, found {first} to "
                f"{first + count}"
            )
        return file.read(name, first, count)

    def _find(self, name: str) -> SafetensorsFile:
        file = self._file_of.get(name)
        if file is None:
            raise CheckpointError(f"{self.path}: no tensor {name}; it has {listed(list(self._file_of))}")
        return file

    def _open_shards(self, index: Path) -> list[SafetensorsFile]:
        weight_map = _read_index(index)
        shard_names = sorted(set(weight_map.values()))
        there = {each.name for each in index.parent.iterdir()}
        missing = [name for name in shard_names if name not in there]
        if missing:
            raise CheckpointError(
                f"{index}: {len(missing)} of {len(shard_names)} shards are missing: {listed(missing)}; download them"
            )
        files = [SafetensorsFile(index.parent / name) for name in shard_names]
        for file in files:
            for name in file.tensors:
                other = self._file_of.setdefault(name, file)
                if other is not file:
                    raise CheckpointError(
                        f"{file.path}: tensor {name} is in {other.path.name} as well; remove the shard that does not "
                        "belong here, and download the others again"
                    )
        for name, shard in weight_map.items():
            found = self._file_of.get(name)
            if found is None or found.path.name != shard:
                where = f"it in {found.path.name}" if found else "it nowhere"
                raise CheckpointError(
                    f"{index}: tensor {name}: expected it in {shard}, found {where}; the shards and the index are of "
                    "different checkpoints: download them again"
                )
        return files


def listed(names: Sequence[str]) -> str:
    """Return the first few names for a message, and the number of the others."""
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return (", ".join(names[:_MANY]) or "none") + more


def _choose(path: Path) -> Path:
    """Return the index or the single file that a path means."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or folder; check the path")
    for name in (INDEX_NAME, WEIGHTS_NAME):
        if (path / name).is_file():
            return path / name
    for pattern in (f"*{_INDEX_SUFFIX}", "*.safetensors"):
        found = sorted(path.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            raise CheckpointError(
                f"{path}: expected {INDEX_NAME} or {WEIGHTS_NAME}, found {listed([each.name for each in found])}; "
                "name the file that you mean, or download the index"
            )
    pickled = sorted(file.name for file in (*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.pth")))
    if pickled:
        raise CheckpointError(
            f"{path}: expected safetensors files, found {listed(pickled)}, which may run code when they are loaded; "
            "convert them: load the model with transformers and call save_pretrained"
        )
    raise CheckpointError(f"{path}: expected safetensors files, found none; check the path")


def _read_index(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        entries = {str(name): str(shard) for name, shard in weight_map.items()}
    except OSError as error:
        raise CheckpointError(f"{index}: cannot be read: {error.strerror}; check its permissions") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{index}: expected JSON with a weight_map from tensors to shards, found {error!r}; download it again"
        ) from error
    for name, shard in entries.items():
        if shard != Path(shard).name:
            raise CheckpointError(f"{index}: tensor {name}: expected a file name for its shard, found {shard!r}")
    if not entries:
        raise CheckpointError(f"{index}: expected a weight_map from tensors to shards, found an empty one")
    return entries
