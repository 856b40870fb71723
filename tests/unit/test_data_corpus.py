from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest

from luwu.data.corpus import Corpus
from luwu.data.passages import PASSAGE_BYTES
from luwu.data.preparation import check_length, prepare
from luwu.data.source import find_text
from luwu.errors import DataError


def write_files(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_a_folder_is_read_in_an_order_of_names(tmp_path):
    write_files(tmp_path, {"b.txt": b"bb", "a/z.txt": b"z", "a.txt": b"a", ".hidden": b"no", ".git/x": b"no"})
    source = find_text(str(tmp_path))
    assert [str(file.relative_to(tmp_path)) for file in source.files] == ["a.txt", "b.txt", "a/z.txt"]
    assert source.total_bytes == 4 + 3


def test_binary_files_in_a_folder_are_left_out(tmp_path):
    write_files(tmp_path, {"text.txt": b"hello", "image.png": b"\x89PNG\0\0"})
    assert [file.name for file in find_text(str(tmp_path)).files] == ["text.txt"]


def test_the_standard_library_is_there_without_its_tests():
    source = find_text(None)
    names = {file.name for file in source.files}
    assert {"argparse.py", "typing.py"} <= names
    assert not any({"test", "tests", "site-packages"} & set(file.parts[-4:-1]) for file in source.files)
    assert source == find_text(None)


@pytest.mark.parametrize(
    ("files", "path", "words"),
    [
        ({}, "missing.txt", "cannot be read: No such file"),
        ({}, "", "found none"),
        ({"empty.txt": b""}, "empty.txt", "found none"),
        ({"image.png": b"\x89PNG\0\0"}, "image.png", "found binary data"),
        ({"folder/image.png": b"\0"}, "folder", "found none"),
    ],
)
def test_data_that_cannot_be_used_is_named(tmp_path, files, path, words):
    write_files(tmp_path, files)
    with pytest.raises(DataError, match=words) as refusal:
        find_text(str(tmp_path / path))
    assert str(tmp_path / path).rstrip("/") in str(refusal.value)


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    write_files(tmp_path, {"good.txt": b"good", "secret.txt": b"secret"})
    opener = type(tmp_path).open

    def refuse(self, *args, **kwargs):
        if self.name == "secret.txt":
            raise PermissionError(13, "Permission denied", str(self))
        return opener(self, *args, **kwargs)

    monkeypatch.setattr(type(tmp_path), "open", refuse)
    with pytest.raises(DataError, match=r"secret\.txt: cannot be read: Permission denied"):
        find_text(str(tmp_path))


def test_too_little_text_says_how_much_is_needed(tmp_path):
    write_files(tmp_path, {"short.txt": b"x" * 99})
    with pytest.raises(DataError, match=r"least 2580 bytes for sequences of 128, found 99 in .*/short\.txt; .*--seq"):
        check_length(find_text(str(tmp_path)), 128, 0.05)


@pytest.mark.parametrize(("size", "fraction"), [(2580, 0.05), (5000, 0.5), (30 * PASSAGE_BYTES + 17, 0.05)])
def test_no_byte_is_lost_and_the_split_is_whole_passages(tmp_path, size, fraction):
    text = np.random.default_rng(0).integers(1, 256, size - 2, dtype=np.uint8).tobytes()
    write_files(tmp_path, {"data/1": text[: size // 3], "data/2": text[size // 3 :]})
    (tmp_path / "run").mkdir()
    source = find_text(str(tmp_path / "data"))
    corpus = prepare(source, tmp_path / "run", seq=128, validation_fraction=fraction)
    train, validation = corpus.train, corpus.validation
    assert len(train) + len(validation) == size
    assert len(validation) > 128
    assert len(train) > 128
    assert len(validation) / size == pytest.approx(fraction, rel=0.3)
    joined = text[: size // 3] + b"\n" + text[size // 3 :] + b"\n"
    assert sorted(bytes(train) + bytes(validation)) == sorted(joined)
    every = round(1 / fraction)
    passage, first = max(129, min(PASSAGE_BYTES, size // (every * 5))), every // 2
    assert bytes(validation[:passage]) == joined[first * passage : (first + 1) * passage]
    assert bytes(train[: first * passage]) == joined[: first * passage]


def test_the_corpus_is_found_again(tmp_path):
    write_files(tmp_path, {"text": b"abcd" * 1000})
    assert Corpus.load(tmp_path) is None
    corpus = prepare(str(tmp_path / "text"), tmp_path, seq=16)
    assert Corpus.load(tmp_path) == corpus
    assert (corpus.unit, corpus.bytes_per_token, corpus.documents) == ("byte", 1.0, 1)
    assert corpus.entropy == pytest.approx(math.log(4), abs=0.01)


def test_a_truncated_corpus_is_refused(tmp_path):
    write_files(tmp_path, {"text": b"abcd" * 1000})
    prepare(str(tmp_path / "text"), tmp_path, seq=16)
    with (tmp_path / "corpus.bin").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(DataError, match=r"corpus\.bin: expected 4001 bytes, found 100; delete corpus\.json"):
        Corpus.load(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"name": "x"})])
def test_a_damaged_sidecar_is_refused(tmp_path, content):
    (tmp_path / "corpus.json").write_text(content)
    with pytest.raises(DataError, match=r"corpus\.json: cannot be used"):
        Corpus.load(tmp_path)


def test_a_corpus_of_an_earlier_version_is_still_used(tmp_path):
    (tmp_path / "corpus.bin").write_bytes(b"abcde")
    old = {"name": "x", "files": 1, "train_bytes": 3, "validation_bytes": 2, "entropy": 1.0}
    (tmp_path / "corpus.json").write_text(json.dumps(old))
    corpus = Corpus.load(tmp_path)
    assert (bytes(corpus.train), bytes(corpus.validation), corpus.vocabulary) == (b"abc", b"de", 256)
    assert corpus.verify_if_touched() is corpus


def test_the_default_corpus_is_made_of_the_same_bytes_as_ever(tmp_path):
    write_files(tmp_path, {"data/a.py": b"1" * 70_000, "data/b.py": b"", "data/c.py": b"3" * 70_000})
    corpus = prepare(str(tmp_path / "data"), tmp_path / "run", seq=128)
    passages = [b"".join([b"1" * 70_000, b"\n\n", b"3" * 70_000, b"\n"])[i * 1400 : (i + 1) * 1400] for i in range(101)]
    assert bytes(corpus.validation) == b"".join(passages[10::20])
    assert bytes(corpus.train) == b"".join(passage for i, passage in enumerate(passages) if i % 20 != 10)
    assert (corpus.documents, corpus.blank) == (3, 0)


def test_damage_is_found_once_the_file_was_touched(tmp_path):
    write_files(tmp_path, {"text": b"abcd" * 1000})
    corpus = prepare(str(tmp_path / "text"), tmp_path, seq=16)
    assert corpus.verify_if_touched() is corpus
    path = tmp_path / "corpus.bin"
    os.utime(path, ns=(1, 1))
    seen = corpus.verify_if_touched()
    assert seen == Corpus.load(tmp_path) and seen.written_ns == 1 and seen.verify_if_touched() is seen
    data = bytearray(path.read_bytes())
    data[77] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"corpus\.bin: expected the checksum .* damaged; delete corpus\.json"):
        Corpus.load(tmp_path).verify_if_touched()


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="expected a file or a folder, found a pipe or a device"):
        find_text(tmp_path / "pipe")
