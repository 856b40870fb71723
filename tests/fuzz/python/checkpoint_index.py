"""The index of a checkpoint in shards: refused, or every tensor is in the shard that it names."""

from __future__ import annotations

import json

from tests.fuzz.python.support import Input, allowing, edited, put, scratch

from luwu.errors import CheckpointError
from luwu.store.checkpoint import INDEX_NAME, CheckpointReader

SHARDS = {"one.safetensors": {"a": 0, "b": 1}, "two.safetensors": {"c": 2}}
INDEX = {"metadata": {}, "weight_map": {name: shard for shard, names in SHARDS.items() for name in names}}
_BYTES = 4


def _shard(names: dict[str, int]) -> bytes:
    entries = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [at * _BYTES, (at + 1) * _BYTES]}
        for at, name in enumerate(names)
    }
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + b"".join(bytes([each] * _BYTES) for each in names.values())


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    folder = scratch()
    for shard, names in SHARDS.items():
        (folder / shard).write_bytes(_shard({**names, "a": 0} if mode == 1 else names))
    put(folder / INDEX_NAME, edited(INDEX, given), mode // 16)
    if mode == 2:
        (folder / INDEX_NAME).rename(folder / "other.safetensors.index.json")
    if mode == 4:
        (folder / "two.safetensors").unlink()
    named = (folder, folder / "one.safetensors", folder / INDEX_NAME)[mode // 64 % 3]
    reader = allowing(CheckpointError, lambda: CheckpointReader(named))
    if reader is None:
        return
    with reader:
        for shard, names in SHARDS.items():
            for name, value in names.items():
                if name in reader.names():
                    assert reader.read(name).view(-1).numpy().tobytes() == bytes([value] * _BYTES), (shard, name)
