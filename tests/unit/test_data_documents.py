from __future__ import annotations

import gzip
import json

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from tests.unit.corpora import write_jsonl

from luwu.data.documents import PIECE_BYTES, Counts, count_documents, read_documents
from luwu.data.source import find_text
from luwu.errors import DataError

TEXTS = ["first\ndocument", "", "  \n", "zweites Dökument", None]


def documents(file, field="text", *, keep_blank=False):
    """Whole documents, and the counts."""
    counts, found, pending = Counts(), [], b""
    for piece in count_documents(read_documents(file, field), counts, keep_blank=keep_blank):
        pending += piece.data
        if piece.ends:
            found.append(pending.decode())
            pending = b""
    assert pending == b""
    return found, counts


def write_parquet(path, texts, field="text", **options):
    parquet.write_table(arrow.table({"id": list(range(len(texts))), field: texts}), path, **options)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz", "a.parquet"])
def test_each_record_is_a_document_and_blank_ones_are_counted(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        write_parquet(path, TEXTS, row_group_size=2)
    else:
        write_jsonl(path, [{"text": text, "other": 1} for text in TEXTS])
    assert documents(path) == ([TEXTS[0], TEXTS[3]], Counts(5, 3))


def test_lines_without_anything_are_no_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"text": "a"}\n\n  \n{"text": "b"}')  # and no newline at the end
    assert documents(path) == (["a", "b"], Counts(2, 0))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_text_file_is_one_document_however_long(tmp_path, name):
    text = " \n" * PIECE_BYTES + "the end"
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert documents(path) == ([text], Counts(1, 0))


def test_empty_files_may_be_kept(tmp_path):
    (tmp_path / "a").touch()
    assert documents(tmp_path / "a") == ([], Counts(1, 1))
    assert documents(tmp_path / "a", keep_blank=True) == ([""], Counts(1, 0))


@pytest.mark.parametrize(
    "kind", [arrow.string(), arrow.large_string(), arrow.string_view(), arrow.dictionary(arrow.int32(), arrow.string())]
)
def test_every_kind_of_text_column_is_read(tmp_path, kind):
    column = arrow.array(["a", None, "c"]).cast(kind)
    parquet.write_table(arrow.table({"body": column}), tmp_path / "a.parquet")
    assert documents(tmp_path / "a.parquet", "body") == (["a", "c"], Counts(3, 1))


def test_lone_surrogates_become_replacement_characters(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b \\ud83d\\ude00"}\n')
    assert documents(tmp_path / "a.jsonl")[0] == ["a\ufffdb \U0001f600"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "found what is not JSON"),
        ("[1]", "expected a JSON object, found a list"),
        ("7", "found a number"),
        ('{"body": "x", "id": 1}', r"expected the field 'text', found 'body', 'id'; name it with --text-field"),
        ("{}", "found none"),
        ('{"text": 7}', "expected text in the field 'text', found a number"),
        ('{"text": {"a": 1}}', "found an object"),
        (json.dumps({f"f{i}": 0 for i in range(30)}), "'f19' and 10 more"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, words):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(DataError, match=rf"a\.jsonl:2: .*{words}"):
        documents(path)


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "good"}\n{"text": "b\xe4d"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: .*not JSON.*utf-8"):
        documents(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("column", "field", "words"),
    [("body", "text", "expected a column 'text', found 'id', 'body'"), ("text", "id", "expected text .* found int64")],
)
def test_a_column_that_will_not_do_is_named(tmp_path, column, field, words):
    write_parquet(tmp_path / "a.parquet", ["x"], column)
    with pytest.raises(DataError, match=rf"a\.parquet: {words}"):
        documents(tmp_path / "a.parquet", field)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "a.txt.gz"])
@pytest.mark.parametrize("cut", [0.5, 0.9])
def test_a_file_that_was_cut_off_is_named(tmp_path, name, cut):
    path, texts = tmp_path / name, [f"text {number} {number * number}" for number in range(2000)]
    if name.endswith("parquet"):
        write_parquet(path, texts)
    else:
        write_jsonl(path, [{"text": text} for text in texts])
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * cut)])
    with pytest.raises(DataError, match=path.name):
        documents(path)


@pytest.mark.parametrize("checksum", [True, False])
def test_a_damaged_parquet_page_is_named(tmp_path, checksum):
    texts = [f"text {number}" for number in range(5000)]
    path = write_parquet(
        tmp_path / "a.parquet", texts, use_dictionary=False, compression="none", write_page_checksum=checksum
    )
    data = bytearray(path.read_bytes())
    place = data.index(b"text 40")
    data[place : place + 7] = b"\xff" * 7
    path.write_bytes(data)
    with pytest.raises(DataError, match="CRC checksum" if checksum else r"a\.parquet: expected UTF-8 .*\\xff"):
        documents(path)


def test_folders_may_mix_kinds_in_an_order_of_names(tmp_path):
    (tmp_path / "b.txt").write_text("b")
    write_jsonl(tmp_path / "a.jsonl.gz", [{"text": "a"}])
    write_parquet(tmp_path / "c.parquet", ["c"])
    (tmp_path / "d.bin").write_bytes(b"\0")
    (tmp_path / "e.tar.gz").write_bytes(gzip.compress(b"name\0\0"))
    source = find_text(tmp_path)
    assert [file.name for file in source.files] == ["a.jsonl.gz", "b.txt", "c.parquet"]
    assert not source.plain
    assert [text for file in source.files for text in documents(file)[0]] == ["a", "b", "c"]


def test_several_places_keep_their_order(tmp_path):
    for name in ("z/1", "a/2", "3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    source = find_text([tmp_path / "z", tmp_path / "a", tmp_path / "3"])
    assert [file.name for file in source.files] == ["1", "2", "3"]
    assert (source.name, source.total_bytes, source.plain) == ("z", 6, True)


def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch):
    write_parquet(tmp_path / "a.parquet", ["x"])
    monkeypatch.setattr("luwu.data.source.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"a\.parquet: .* pyarrow, found none; pip install pyarrow"):
        find_text(tmp_path)
