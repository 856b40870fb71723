from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.corpora import END, story, tokenizer_file, write_jsonl
from tokenizers import Tokenizer

from luwu.data import preparation, writer
from luwu.data.corpus import Corpus
from luwu.data.documents import Piece
from luwu.data.passages import DocumentCutter
from luwu.data.preparation import prepare
from luwu.data.tokenizer import ByteTokenizer, FileTokenizer, token_type
from luwu.errors import ConfigError, DataError

STORIES = [story(number) for number in range(60)]


@pytest.fixture
def tokenizer(tmp_path):
    return tokenizer_file(tmp_path / "tokenizer.json")


@pytest.fixture
def stories(tmp_path):
    """Documents in two files of JSONL and one of text."""
    write_jsonl(tmp_path / "data/a.jsonl", [{"text": text} for text in STORIES[:40]] + [{"text": ""}])
    write_jsonl(tmp_path / "data/b.jsonl.gz", [{"text": text} for text in STORIES[40:59]])
    (tmp_path / "data/c.txt").write_text(STORIES[59])
    return tmp_path / "data"


def split_at(tokens, end):
    """Documents of a stream of tokens; the last one may be unfinished."""
    return np.split(tokens, np.flatnonzero(tokens == end) + 1)


@pytest.mark.parametrize(("vocabulary", "kind"), [(256, "u1"), (257, "<u2"), (65536, "<u2"), (65537, "<u4")])
def test_tokens_take_the_fewest_bytes(vocabulary, kind):
    assert token_type(vocabulary) == np.dtype(kind)


def test_documents_become_the_tokenizers_tokens_and_an_end(tmp_path, stories, tokenizer):
    corpus = prepare(stories, tmp_path / "run", tokenizer, validation_fraction=0.1)
    reader = Tokenizer.from_file(str(tokenizer))
    wanted = sorted([*reader.encode(text).ids, corpus.tokenizer().end] for text in STORIES)
    both = np.concatenate([corpus.train, corpus.validation])
    assert sorted(document.tolist() for document in split_at(both, corpus.tokenizer().end)[:-1]) == wanted
    assert both.dtype == np.uint16
    assert (corpus.documents, corpus.blank, corpus.files, corpus.unit) == (61, 1, 3, "token")
    assert corpus.train_bytes + corpus.validation_bytes == sum(len(text.encode()) + 1 for text in STORIES)
    assert corpus.end_token == END and corpus.vocabulary == reader.get_vocab_size()
    assert Corpus.load(tmp_path / "run") == corpus
    shares = np.bincount(both) / len(both)
    assert corpus.entropy == pytest.approx(-sum(share * np.log(share) for share in shares if share))


def test_whole_documents_are_held_back(tmp_path, stories, tokenizer):
    corpus = prepare(stories, tmp_path / "run", tokenizer, validation_fraction=0.1)
    held_back = corpus.tokenizer().decode(corpus.validation.tolist()).split(END)[:-1]
    assert held_back == STORIES[5::10]
    assert corpus.bytes_per_token == pytest.approx(
        sum(len(text.encode()) + 1 for text in held_back) / len(corpus.validation)
    )


def test_a_long_document_is_held_back_in_parts(tmp_path, tokenizer):
    lines = [f"the line {number}\n" for number in range(20_000)]
    (tmp_path / "long.txt").write_text("".join(lines))
    corpus = prepare(tmp_path / "long.txt", tmp_path / "run", tokenizer)
    decode = corpus.tokenizer().decode
    train, validation = decode(corpus.train.tolist()), decode(corpus.validation.tolist())
    assert train.count(END) + validation.count(END) == 1
    train_lines, held_back = train.replace(END, "").splitlines(True), validation.replace(END, "").splitlines(True)
    assert sorted(train_lines + held_back) == sorted(lines)
    assert len(held_back) / len(lines) == pytest.approx(0.05, rel=0.3)


@given(st.text(alphabet="ab \nüé\U0001f600", max_size=400), st.integers(16, 64), st.integers(1, 50))
def test_passages_of_a_document_are_all_of_it_and_cut_no_letter(text, size, step):
    data = text.encode()
    pieces = [Piece(data[start : start + step], False, 0.0) for start in range(0, len(data), step)]
    cutter = DocumentCutter(size)
    passages = list(cutter.cut([*pieces, Piece(b"", True, 1.0)]))
    assert b"".join(passage for passage, _ in passages) == data
    assert [ends for _, ends in passages] == [False] * (len(passages) - 1) + [True]
    assert all(len(passage.decode().encode()) <= size for passage, _ in passages)
    assert not cutter.carry and not list(cutter.flush())


def test_jsonl_may_be_trained_on_as_bytes(tmp_path, stories):
    corpus = prepare(stories, tmp_path / "run")
    text = bytes(np.concatenate([corpus.train, corpus.validation])).decode(errors="replace")
    assert corpus.unit == "byte" and corpus.blank == 1
    assert len(corpus.train) + len(corpus.validation) == sum(len(text.encode()) + 1 for text in STORIES)
    assert "{" not in text and text.count("In story 7 the fox number 3 met the hen. Ünïcödé too!\n") == 1


class CutError(Exception):
    """Ends a preparation in the middle."""


def cut_short(after):
    """Ends a preparation after a number of batches."""
    calls = []

    def count(done, total):
        calls.append(done)
        assert 0 <= done <= total
        if len(calls) == after:
            raise CutError

    return count


@pytest.mark.parametrize("after", [1, 5, 14])
@pytest.mark.parametrize("bytewise", [False, True])
def test_a_preparation_that_was_cut_short_goes_on(tmp_path, stories, tokenizer, monkeypatch, after, bytewise):
    chosen = ByteTokenizer() if bytewise else FileTokenizer(tokenizer)
    whole = prepare(stories, tmp_path / "whole", chosen)
    monkeypatch.setattr(preparation, "BATCH_BYTES", 4000)
    monkeypatch.setattr(writer, "NOTED_BYTES", 8000)
    run = tmp_path / "run"
    with pytest.raises(CutError):
        prepare(stories, run, chosen, on_progress=cut_short(after))
    with (run / "corpus.bin.partial").open("ab") as file:
        file.write(b"of a batch that was never noted")
    assert Corpus.load(run) is None
    batches = []
    corpus = prepare(stories, run, chosen, on_progress=lambda done, total: batches.append(done))
    assert (run / "corpus.bin").read_bytes() == (tmp_path / "whole/corpus.bin").read_bytes()
    assert corpus == Corpus(**{**whole.__dict__, "written_ns": corpus.written_ns})
    all_batches = []
    prepare(stories, tmp_path / "again", chosen, on_progress=lambda done, total: all_batches.append(done))
    assert len(batches) == len(all_batches) - after // 2 * 2
    assert {path.name for path in run.iterdir()} - {"tokenizer.json"} == {"corpus.bin", "corpus.json", "corpus.lock"}


def test_notes_of_other_data_are_not_gone_on_from(tmp_path, stories, tokenizer, monkeypatch):
    monkeypatch.setattr(preparation, "BATCH_BYTES", 4000)
    monkeypatch.setattr(writer, "NOTED_BYTES", 4000)
    with pytest.raises(CutError):
        prepare(stories, tmp_path / "run", tokenizer, on_progress=cut_short(5))
    (stories / "c.txt").write_text("the end")
    corpus = prepare(stories, tmp_path / "run", tokenizer)
    other = prepare(stories, tmp_path / "other", tokenizer)
    assert (corpus.checksum, corpus.documents) == (other.checksum, other.documents)


def test_a_corpus_is_prepared_once(tmp_path, stories, tokenizer, monkeypatch):
    first = prepare(stories, tmp_path / "run", tokenizer)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "Writer", None)
        assert prepare(stories, tmp_path / "run", tokenizer, seq=500) == first
    (stories / "c.txt").write_text(STORIES[0])
    assert prepare(stories, tmp_path / "run", tokenizer).checksum != first.checksum


def test_workers_that_start_together_prepare_once(tmp_path, stories):
    code = (
        "import luwu.data.preparation as made\n"
        "written = []\n"
        "class Writer(made.Writer):\n"
        "    def finish(self, *arguments): written.append(1); return super().finish(*arguments)\n"
        "made.Writer = Writer\n"
        f"print(len(written), made.prepare({str(stories)!r}, 'run').checksum, len(written))"
    )
    command = [sys.executable, "-c", code]
    workers = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [worker.communicate(timeout=60)[0].split() for worker in workers]
    assert len({checksum for _, checksum, _ in said}) == 1
    assert sorted(count for _, _, count in said) == ["0", "0", "1"]


def test_text_that_is_not_utf8_is_named_with_its_place(tmp_path, tokenizer):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/good").write_text("the good\n" * 1000)
    (tmp_path / "data/latin").write_bytes(b"a line\n" * 1000 + "Köln".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin: expected UTF-8, .* at 7001; convert .* or train on bytes"):
        prepare(tmp_path / "data", tmp_path / "run", tokenizer)
    prepare(tmp_path / "data", tmp_path / "run")


def test_too_little_text_is_told_in_tokens(tmp_path, stories, tokenizer):
    with pytest.raises(DataError, match=r"at least 100001 tokens of training text .* found \d+; .*--seq"):
        prepare(stories, tmp_path / "run", tokenizer, seq=100_000)
    (tmp_path / "short").write_text("the one line")
    with pytest.raises(DataError, match=r"at least 3 tokens of validation text .* found 0"):
        prepare(tmp_path / "short", tmp_path / "other", tokenizer, seq=2)


@pytest.mark.parametrize("fraction", [0.0, 0.6])
def test_a_share_that_cannot_be_held_back(tmp_path, stories, fraction):
    with pytest.raises(ConfigError, match=f"validation_fraction: expected .* found {fraction}"):
        prepare(stories, tmp_path / "run", validation_fraction=fraction)


def test_another_tokenizer_than_the_corpus_was_made_with(tmp_path, stories, tokenizer):
    corpus = prepare(stories, tmp_path / "run", tokenizer)
    corpus.check_tokenizer(tokenizer)
    other = tokenizer_file(tmp_path / "other/tokenizer.json", merges=(("i", "n"),))
    for wrong in (other, other.parent, None):
        with pytest.raises(DataError, match=r"expected the one that the corpus was prepared with \(sha256 .*\), found"):
            corpus.check_tokenizer(wrong)
    shutil.copy(other, tmp_path / "run/tokenizer.json")
    with pytest.raises(DataError, match=r"run/tokenizer\.json: expected the one"):
        corpus.tokenizer()


def test_a_tokenizers_folder_names_its_end(tmp_path):
    folder = tokenizer_file(tmp_path / "tokenizer.json", special=("</s>", "<stop>")).parent
    assert FileTokenizer(folder).end_token == "</s>"
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<stop>"}}))
    assert FileTokenizer(folder).end_token == "<stop>"
    assert FileTokenizer(folder, "th").end_token == "th"
    with pytest.raises(DataError, match=r"expected a token 'nope' .* --end-token \(its special tokens: </s>, <stop>\)"):
        FileTokenizer(folder, "nope")
    tokenizer_file(tmp_path / "bare/tokenizer.json", special=())
    with pytest.raises(DataError, match=r"expected a token that ends documents, .* any of its vocabulary will do"):
        FileTokenizer(tmp_path / "bare")


def test_a_tokenizer_without_the_token_that_it_names_for_what_is_unknown(tmp_path):
    model = {"type": "BPE", "vocab": {"a": 0, "</s>": 1}, "merges": [], "unk_token": "<unk>"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    tokenizer = FileTokenizer(tmp_path)
    assert tokenizer.encode(["aa"]) == [[0, 0]]
    for encode in (lambda: tokenizer.encode(["ab"]), lambda: tokenizer.encode_prompt("ab")):
        with pytest.raises(DataError, match=r"tokenizer .*tokenizer\.json: expected tokens for any text.*<unk>.*mend"):
            encode()


def test_truncation_and_padding_are_switched_off(tmp_path, tokenizer):
    reader = Tokenizer.from_file(str(tokenizer))
    reader.enable_truncation(3)
    reader.enable_padding(length=10)
    reader.save(str(tokenizer))
    long, short = FileTokenizer(tokenizer).encode(["abcdefgh", "a"])
    assert (len(long), len(short)) == (8, 1)


def test_a_tokenizer_that_is_not_there(tmp_path, tokenizer, monkeypatch):
    with pytest.raises(DataError, match=r"nope: expected a tokenizer\.json or a folder with one, found none"):
        FileTokenizer(tmp_path / "nope")
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(DataError, match=r"broken\.json: expected a tokenizer\.json of the tokenizers library"):
        FileTokenizer(tmp_path / "broken.json")
    monkeypatch.setattr("luwu.data.tokenizer.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"tokenizers, found none; pip install tokenizers"):
        FileTokenizer(tokenizer)


@given(st.text(max_size=50))
def test_bytes_come_back_as_text(text):
    tokenizer = ByteTokenizer()
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        return
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text
