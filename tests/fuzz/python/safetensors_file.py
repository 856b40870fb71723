"""A safetensors file: refused, or its tensors are the bytes that its header says."""

from __future__ import annotations

import torch
from tests.fuzz.python.support import Input, allowing, edited, put, scratch

from luwu.errors import CheckpointError
from luwu.store.checkpoint import CheckpointReader
from luwu.store.safetensors_file import LENGTH_BYTES

HEADER = {
    "__metadata__": {"format": "pt", "tied": "a"},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
    "empty": {"dtype": "I64", "shape": [0], "data_offsets": [22, 22]},
}
CONTENT = bytes(range(22))


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    if mode % 4 == 3:
        content = given.rest()
    else:
        header = edited(HEADER, given)
        length = len(header) + (mode % 4 == 2) * (mode // 4)
        content = length.to_bytes(LENGTH_BYTES, "little") + header + CONTENT[: 22 - (mode % 4 == 1) * (mode // 4) % 22]
    path = scratch() / "model.safetensors"
    put(path, content, mode // 64)
    reader = allowing(CheckpointError, lambda: CheckpointReader(path))
    if reader is None:
        return
    with reader:
        begin = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
        total = 0
        for name in reader.names():
            tensor = reader.read(name)
            assert tensor.shape == reader.shape(name) and tensor.dtype == reader.dtype(name), name
            total += tensor.nbytes
            allowing(CheckpointError, lambda name=name: reader.read_range(name, 1, 1))
            flat = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
            assert flat in content[begin:], "a tensor has bytes of its file"
        assert begin + total == len(content), "tensors fill their file"
        assert set(reader.aliases().values()) <= set(reader.names()), "an alias stands for a tensor"
        allowing(CheckpointError, lambda: reader.shape("no such tensor"))
