"""Training data as text or JSONL, compressed or not: refused, or documents whose text is as it was written."""

from __future__ import annotations

import gzip

from tests.fuzz.python.support import Input, allowing, edited, scratch

from luwu.data.documents import Counts, count_documents, read_documents
from luwu.data.source import find_text
from luwu.errors import DataError

NAMES = ("a.jsonl", "a.txt", "a.jsonl.gz", "a.txt.gz")
LINE = {"text": "some words", "other": [1, {"text": None}]}


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    name = NAMES[mode % len(NAMES)]
    content = given.rest() if mode & 4 else b"\n".join(edited(LINE, given) for _ in range(1 + mode // 64))
    if name.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
        if mode & 8:
            cut = given.number(2) % (len(content) + 1)
            content = content[:cut] + given.bytes(8) + content[cut + 8 :]
    path = scratch() / name
    path.write_bytes(content)
    pieces = allowing(DataError, lambda: list(read_documents(path, "text")))
    allowing(DataError, lambda: find_text(path))
    if pieces is None:
        return
    for piece in pieces:
        assert 0 <= piece.place <= 1 or name.endswith(".gz"), "a piece lies in its file"
        if "jsonl" in name:
            piece.data.decode()
    if name == "a.txt":
        assert b"".join(piece.data for piece in pieces) == content, "text is as it was written"
    counts = Counts()
    kept = list(count_documents(iter(pieces), counts, keep_blank=False))
    assert counts.blank <= counts.documents and sum(piece.ends for piece in kept) == counts.documents - counts.blank
