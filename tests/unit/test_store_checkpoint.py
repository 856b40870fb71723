"""Checkpoints are read in parts, and what is wrong with them is said by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from luwu.errors import CheckpointError
from luwu.store.checkpoint import INDEX_NAME, CheckpointReader

TENSORS = {
    "first": torch.arange(24, dtype=torch.float32).view(4, 6),
    "second": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16),
    "third": torch.randn(7, generator=torch.Generator().manual_seed(1)).to(torch.float16),
    "empty": torch.empty(0, 4),
}
SHARDS = {"first": "a.safetensors", "second": "b.safetensors", "third": "b.safetensors", "empty": "b.safetensors"}


def write_shards(folder: Path) -> Path:
    for shard in set(SHARDS.values()):
        save_file({name: TENSORS[name] for name in SHARDS if SHARDS[name] == shard}, folder / shard)
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": SHARDS}))
    return folder


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder with an index and two shards."""
    return write_shards(tmp_path)


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(path)
    return str(caught.value)


def test_reads_what_the_library_wrote(shards: Path) -> None:
    for path in (shards, shards / INDEX_NAME):
        with CheckpointReader(path) as reader:
            assert set(reader.names()) == set(TENSORS)
            for name, tensor in TENSORS.items():
                assert reader.shape(name) == tuple(tensor.shape)
                assert reader.dtype(name) == tensor.dtype
                assert torch.equal(reader.read(name), tensor)


def test_reads_parts_of_a_single_file(shards: Path) -> None:
    with CheckpointReader(shards / "b.safetensors") as reader:
        assert torch.equal(reader.read_range("second", 4, 6), TENSORS["second"].reshape(-1)[4:10])
        assert reader.read_range("second", 15, 0).numel() == 0
        with pytest.raises(CheckpointError, match="expected a range of its 15 elements, found 10 to 16"):
            reader.read_range("second", 10, 6)
        with pytest.raises(CheckpointError, match=r"no tensor fourth; it has .*second"):
            reader.read("fourth")


def test_tied_names_that_were_left_out_are_known(tmp_path: Path) -> None:
    save_file({"embed": torch.ones(2)}, tmp_path / "model.safetensors", metadata={"head": "embed", "format": "pt"})
    assert CheckpointReader(tmp_path).aliases() == {"head": "embed"}


def test_missing_shard_is_named(shards: Path) -> None:
    (shards / "b.safetensors").unlink()
    assert "1 of 2 shards are missing: b.safetensors; download them" in refusal(shards)


@pytest.mark.parametrize("end", [-4, 20, 5])
def test_half_downloaded_shard_is_named(shards: Path, end: int) -> None:
    path = shards / "b.safetensors"
    path.write_bytes(path.read_bytes()[:end])
    message = refusal(shards)
    assert str(path) in message
    assert "download it again" in message


def test_a_note_of_git_lfs_is_not_the_shard(shards: Path) -> None:
    (shards / "b.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1234\n")
    assert "b.safetensors: expected a safetensors file, found Git LFS's note of where it is; download" in refusal(
        shards
    )


def test_bytes_after_the_end_are_noticed(shards: Path) -> None:
    with (shards / "a.safetensors").open("ab") as file:
        file.write(b"more")
    assert "a.safetensors: expected" in refusal(shards)


@pytest.mark.parametrize(
    ("header", "part"),
    [
        (b"not JSON", "expected a safetensors file"),
        (b"[1]", "expected a safetensors file, found a list"),
        (b'{"x": 5}', "tensor x: expected dtype, shape and data_offsets, found 5"),
        (b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "tensor x: expected 8 bytes"),
        (b'{"x": {"dtype": "Q4", "shape": [2], "data_offsets": [0, 8]}}', "expected a dtype of F64, F32.*found Q4"),
        (b'{"x": {"dtype": "F32", "shape": [-2], "data_offsets": [0, -8]}}', "tensor x: expected -8 bytes"),
        (b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}', "tensor x: expected to begin at byte"),
        (
            b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, '
            b'"y": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}',
            "tensor y: expected to begin at byte",
        ),
        (
            b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
            b'"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
            "the header names x twice",
        ),
    ],
)
def test_garbage_in_a_header_is_told(tmp_path: Path, header: bytes, part: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    with pytest.raises(CheckpointError, match=part):
        CheckpointReader(path)


def test_a_header_that_claims_too_much_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((1 << 60).to_bytes(8, "little") + bytes(100))
    assert "expected a safetensors file" in refusal(path)


def test_a_tensor_in_two_shards_is_refused(shards: Path) -> None:
    save_file({"first": TENSORS["first"], "second": TENSORS["second"]}, shards / "a.safetensors")
    assert "tensor second is in a.safetensors as well" in refusal(shards)


def test_an_index_of_another_checkpoint_is_refused(shards: Path) -> None:
    for wrong, part in (
        ({**SHARDS, "fourth": "a.safetensors"}, "tensor fourth: expected it in a.safetensors, found it nowhere"),
        (
            {**SHARDS, "first": "b.safetensors", "third": "a.safetensors"},
            "expected it in b.safetensors, found it in a.",
        ),
        ({"first": "../a.safetensors"}, "expected a file name for its shard, found '../a.safetensors'"),
        ({}, "found an empty one"),
    ):
        (shards / INDEX_NAME).write_text(json.dumps({"weight_map": wrong}))
        assert part in refusal(shards)


def test_a_folder_without_a_checkpoint_says_what_there_is(tmp_path: Path) -> None:
    assert "expected safetensors files, found none" in refusal(tmp_path)
    assert "no such file or folder" in refusal(tmp_path / "nowhere")
    (tmp_path / "pytorch_model.bin").touch()
    assert "found pytorch_model.bin, which may run code" in refusal(tmp_path)
    for name in ("x.safetensors", "y.safetensors"):
        save_file({"x": torch.ones(1)}, tmp_path / name)
    assert "found x.safetensors, y.safetensors; name the file that you mean" in refusal(tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_noticed(shards: Path) -> None:
    reader = CheckpointReader(shards)
    path = shards / "a.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="tensor first was read; do not change it"):
        reader.read("first")
