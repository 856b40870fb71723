from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.unit.corpora import story, write_jsonl
from tokenizers import Tokenizer

from luwu.data.bpe import END_TOKEN, train_tokenizer
from luwu.data.tokenizer import FileTokenizer
from luwu.errors import ConfigError, DataError


@pytest.fixture
def text(tmp_path):
    return write_jsonl(tmp_path / "text.jsonl", [{"body": story(number)} for number in range(200)])


def test_it_learns_the_words_of_the_text(tmp_path, text):
    calls = []
    trained = train_tokenizer(
        text, tmp_path / "t.json", 400, text_field="body", on_progress=lambda *_: calls.append("read"),
        on_merging=lambda: calls.append("merge"),
    )  # fmt: skip
    assert calls[-1] == "merge" and calls.count("merge") == 1 and "read" in calls
    tokenizer = FileTokenizer(tmp_path / "t.json")
    assert (tokenizer.vocabulary, trained.vocabulary, tokenizer.end_token) == (400, 400, END_TOKEN)
    assert trained.bytes_per_token > 3
    held_back = [story(number) for number in range(10, 200, 20)]
    assert trained.measured_bytes == sum(len(text.encode()) for text in held_back)
    assert trained.measured_tokens == sum(map(len, tokenizer.encode(held_back)))
    everything = "Ünïcödé \U0001f600\x00\n\n  and <|nothing|>\t"
    assert tokenizer.decode(tokenizer.encode([everything])[0]) == everything


def test_what_is_held_back_is_not_trained_on(tmp_path):
    texts = [f"secret{number}\n" if number % 20 == 10 else "common\n" for number in range(200)]
    train_tokenizer(write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts]), tmp_path / "t.json", 300)
    vocabulary = Tokenizer.from_file(str(tmp_path / "t.json")).get_vocab()
    assert "common" in vocabulary
    assert not any("se" in token for token in vocabulary if token != END_TOKEN)


def test_the_same_text_gives_the_same_file(tmp_path, text):
    train_tokenizer(text, tmp_path / "a.json", 500, text_field="body")
    code = f"import luwu.data; luwu.data.train_tokenizer({str(text)!r}, 'b.json', 500, text_field='body')"
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_bad_input(tmp_path, text, monkeypatch):
    with pytest.raises(ConfigError, match="at least 257 tokens, found 256"):
        train_tokenizer(text, tmp_path / "t.json", 256)
    with pytest.raises(DataError, match=r"text\.jsonl:1: expected the field 'text', found 'body'"):
        train_tokenizer(text, tmp_path / "t.json", 300)
    monkeypatch.setattr("luwu.data.bpe.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install tokenizers"):
        train_tokenizer(text, tmp_path / "t.json", 300)
    assert not (tmp_path / "t.json").exists()


def test_it_is_a_tokenizer_of_hugging_face(tmp_path, text):
    train_tokenizer(text, tmp_path / "t.json", 300, text_field="body")
    assert json.loads((tmp_path / "t.json").read_text())["model"]["type"] == "BPE"
