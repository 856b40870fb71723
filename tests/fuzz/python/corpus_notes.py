"""corpus.json beside a corpus, and the notes of a preparation that was interrupted."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.python.support import Input, allowing, edited, put, scratch

from luwu.data.corpus import DATA_NAME, SIDECAR_NAME, Corpus
from luwu.data.tokenizer import ByteTokenizer
from luwu.data.writer import NOTES, TRAIN_PARTIAL, VALIDATION_PARTIAL, Writer
from luwu.errors import DataError

CONTENT = b"0123456789"
SIDECAR = {
    "name": "text", "files": 1, "train_bytes": 8, "validation_bytes": 2, "entropy": 2.0, "train_tokens": 8,
    "validation_tokens": 2, "vocabulary": 256, "sha256": None, "end_token": None, "documents": 1, "blank": 0,
    "fingerprint": "f", "checksum": 2793719750, "written_ns": 0,
}  # fmt: skip
PART = {"tokens": 3, "text_bytes": 3, "checksum": 891568578}
NOTED = {
    "fingerprint": "f",
    "position": {"file": 0, "carry": "ab", "documents": 1, "blank": 0, "passages_before": 0, "passages": 1},
    "train": PART,
    "validation": PART,
    "counts": [1, 2],
}


def test_one_input(data: bytes) -> None:
    given = Input(data)
    folder = scratch()
    mode = given.number()
    if mode % 2:
        (folder / DATA_NAME).write_bytes(CONTENT)
        put(folder / SIDECAR_NAME, edited(SIDECAR, given), mode // 2)
        _use(folder, mode // 16)
    else:
        for name in (TRAIN_PARTIAL, VALIDATION_PARTIAL):
            (folder / name).write_bytes(CONTENT)
        (folder / NOTES).write_bytes(edited(NOTED, given))
        with Writer(folder, "f", ByteTokenizer()) as writer:
            assert writer.notes.fingerprint == "f", "notes are of this corpus"
            assert 0 <= writer.notes.train.tokens <= len(CONTENT), "notes are of what was written"


def _use(folder: Path, length: int) -> None:
    corpus = allowing(DataError, lambda: Corpus.load(folder))
    if corpus is None:
        return
    assert corpus.tokens * corpus.token_bytes == len(CONTENT), "a corpus has its tokens"
    assert len(corpus.train) + len(corpus.validation) == corpus.tokens, "and they are in two parts"
    for check in (corpus.tokenizer, lambda: corpus.verify(lambda done, total: None)):
        allowing(DataError, check)
    allowing(DataError, lambda: corpus.check_length(length))
    assert corpus.bytes_per_token >= 0
    seen = allowing(DataError, corpus.verify_if_touched)
    if seen is not None:
        assert Corpus.load(folder) == seen, "a sidecar is read as it was written"
