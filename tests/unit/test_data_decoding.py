"""Text that appears token by token is the text that all tokens decode to."""

from __future__ import annotations

import pytest
from tests.unit.corpora import tokenizer_file

from luwu.data.decoding import TextStream
from luwu.data.tokenizer import ByteTokenizer, FileTokenizer

TEXT = "the Ünïcödé 🦊 and the hen\n"


@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_letters_appear_once_they_are_whole(tmp_path, kind):
    tokenizer = ByteTokenizer() if kind == "bytes" else FileTokenizer(tokenizer_file(tmp_path / "tokenizer.json"))
    tokens = tokenizer.encode([TEXT])[0]
    for begin in (0, 4):
        stream = TextStream(tokenizer, tokens[:begin])
        parts = [stream.push(token) for token in tokens[begin:]]
        assert "".join(parts) == TEXT[len(tokenizer.decode(tokens[:begin])) :]
        assert "\ufffd" not in "".join(parts) and stream.finish() == ""
        assert "" in parts


def test_what_is_no_text_is_given_out_at_the_end():
    stream = TextStream(ByteTokenizer(), [])
    assert [stream.push(token) for token in (97, 0xFF, 98, 0xF0, 0x9F)] == ["a", "", "\ufffdb", "", ""]
    assert stream.finish() == "\ufffd"


def test_nothing_follows_the_end():
    stream = TextStream(ByteTokenizer(), [], ends={0})
    assert [stream.push(token) for token in (97, 0, 98)] == ["a", "", ""]
    assert stream.finish() == ""
