"""A tokenizer.json and what stands beside it: refused, or text becomes tokens of the vocabulary and text again."""

from __future__ import annotations

import json

from tests.fuzz.python.support import Input, allowing, edited, scratch

from luwu.data.tokenizer import FileTokenizer, count_tokens
from luwu.errors import DataError

TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": 2, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True,
        }
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [], "unk_token": None},
}  # fmt: skip
CONFIG = {"eos_token": {"content": "</s>"}, "model_max_length": 5}


def test_one_input(data: bytes) -> None:
    given = Input(data)
    folder = scratch()
    mode = given.number()
    beside = edited(CONFIG, given) if mode & 1 else json.dumps(CONFIG).encode()
    (folder / "tokenizer_config.json").write_bytes(beside)
    (folder / "tokenizer.json").write_bytes(edited(TOKENIZER, given))
    counted = count_tokens(folder)
    tokenizer = allowing(DataError, lambda: FileTokenizer(folder))
    if tokenizer is None:
        return
    assert counted is None or counted >= 0, "a number of tokens is a number"
    encoded = allowing(DataError, lambda: tokenizer.encode(["ab", "", "a</s>"]))
    for tokens in encoded or ():
        assert all(0 <= token < tokenizer.vocabulary for token in tokens), "tokens are below the vocabulary"
        tokenizer.decode(tokens)
