"""Files of a model beside its parameters: its configuration, its tokenizer, and its buffers.

An import keeps them in the folder ``model`` of the store, so that an export gives a folder that loads by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torch import Tensor

from luwu.core.errors import ConfigError
from luwu.core.files import whole_file, write_all
from luwu.core.json_fields import MALFORMED, explained, read_object
from luwu.core.room import NO_WAIT, Room
from luwu.store.folders import MODEL_FOLDER, make_folder
from luwu.store.outputs import Output
from luwu.store.parts import is_file, refused
from luwu.store.safetensors_file import SafetensorsFile
from luwu.store.safetensors_output import as_bytes, header_of

CONFIG_NAME = "config.json"
BUFFERS_NAME = "buffers.safetensors"
_COPY_BYTES = 1 << 20

MOST_BYTES = 256 * 2**20
"""Most bytes of a file that is taken for a part of a configuration or a tokenizer."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf", ".ckpt", ".distcp")
_INDEX_ENDING = ".index.json"


def find_model_files(folder: Path) -> list[Path]:
    """Return the files of a model's folder that are no weights and no index of them; hidden ones are left out.

    Raises:
        StorePermissionError, StoreError: the folder cannot be listed.
    """
    try:
        return sorted(
            path
            for path in folder.iterdir()
            if path.is_file()
            and not path.name.startswith((".", "luwu-"))
            and not path.name.endswith((*_WEIGHTS, _INDEX_ENDING))
            and path.stat().st_size <= MOST_BYTES
        )
    except OSError as error:
        raise refused("list", folder, error) from error


def keep_model_files(source: Path, store: Path, buffers: Mapping[str, Tensor], room: Room = NO_WAIT) -> None:
    """Keep a model's files and buffers in its store. A second call with the same files changes nothing.

    Raises:
        StoreSpaceError, StorePermissionError, StoreError: the store's folder cannot be written to.
    """
    target = store / MODEL_FOLDER
    make_folder(target)
    copy_files(find_model_files(source), target, room)
    if buffers:
        _write_buffers(target / BUFFERS_NAME, buffers, room)


def _write_buffers(path: Path, buffers: Mapping[str, Tensor], room: Room) -> None:
    entries = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in buffers.items()}
    try:
        with whole_file(path) as file:
            output = Output(file, path, room)
            output.write(header_of(entries))
            for tensor in buffers.values():
                output.write(as_bytes(tensor))
    except OSError as error:
        raise refused("write", path, error) from error


def kept_model_folder(store: Path) -> Path | None:
    """Return the folder with the model's files in the store, or None if the store was not imported."""
    folder = store / MODEL_FOLDER
    return folder if is_file(folder / CONFIG_NAME) else None


@contextmanager
def kept_buffers(store: Path) -> Iterator[SafetensorsFile | None]:
    """Open the buffers of an imported model as the checkpoint had them; None where it had none."""
    path = store / MODEL_FOLDER / BUFFERS_NAME
    buffers = SafetensorsFile(path) if is_file(path) else None
    try:
        yield buffers
    finally:
        if buffers is not None:
            buffers.close()


def copy_files(files: list[Path], target: Path, room: Room = NO_WAIT) -> None:
    """Copy files into a folder, durably; raises StoreSpaceError, StorePermissionError or StoreError."""
    for path in files:
        try:
            room.retry(partial(_copy_file, path, target / path.name), target, path.stat().st_size)
        except OSError as error:
            raise refused("write", target / path.name, error) from error


def _copy_file(path: Path, target: Path) -> None:
    with path.open("rb") as source, whole_file(target) as file:
        while data := source.read(_COPY_BYTES):
            write_all(file, data)


def write_config(path: Path, dtype: str, room: Room = NO_WAIT) -> None:
    """Let a configuration name the dtype of the weights beside it, which loaders use.

    Raises:
        ConfigError: it is not JSON.
    """
    try:
        config = dict(read_object(path.read_text(encoding="utf-8")))
        config.pop("torch_dtype", None)  # its name in older versions
        config["dtype"] = dtype
        room.write_file(path, json.dumps(config, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise refused("write", path, error) from error
    except MALFORMED as error:
        raise ConfigError(f"{path}: expected a JSON object, found {explained(error)}; correct the file") from error
