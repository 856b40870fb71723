"""A model's config.json that is damaged is refused by file and field, by everybody who reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luwu.errors import ConfigError
from luwu.launch.rates import _width_of
from luwu.models.config_file import read_config_file
from luwu.models.pretrained import build_causal_on_meta, build_on_meta
from luwu.models.sizes import check_config
from luwu.plan.model_presets import read_config
from luwu.store.model_files import write_config
from luwu.store.upkeep import _architectures

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32, "vocab_size": 300,
    "max_position_embeddings": 64,
}  # fmt: skip


def write(folder: Path, document: object) -> Path:
    path = folder / "config.json"
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return path


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"", "Expecting value"),
        (b"\xff", "can't decode byte"),
        (b"[" * 5000, "thousands deep"),
        (b'{"a":' * 40 + b"0" + b"}" * 40, r"a\.a\.a.* deeper than 32"),
        (b'{"x": ' + b"9" * 5000 + b"}", "digits"),
        (5, "no object but 5"),
        (LLAMA | {"text_config": 5}, "text_config 5, which is no object"),
        (LLAMA | {"name": "\ud800"}, r"name '\\ud800', which is no text"),
        (LLAMA | {"rope": {"x": ["\ud800"]}}, r"rope\.x\.0 '\\ud800', which is no text"),
        (LLAMA | {"\ud800": 1}, "with the name .* which is no text"),
        (LLAMA | {"num_labels": 10**9}, "num_labels 1000000000, which is more than 65536"),
        (LLAMA | {"text_config": LLAMA | {"num_hidden_layers": 10**9}}, r"text_config\.num_hidden_layers 1000000000"),
    ],
)
def test_a_damaged_configuration_is_refused_by_file_and_field(tmp_path: Path, document: object, said: str) -> None:
    path = write(tmp_path, document)
    for read in (
        lambda: read_config_file(path, "model"),
        lambda: read_config(path),
        lambda: build_causal_on_meta(path, 256, 8),
        lambda: build_on_meta(tmp_path),
    ):
        with pytest.raises(ConfigError, match=rf"(?s)config\.json: .*{said}"):
            read()
    check_config(path, 256, 8)  # who builds the model says it
    assert _width_of(path) in (None, 16)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_size": "x"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 2**60}, "hidden_size"),
        ({"num_attention_heads": [2]}, "num_attention_heads"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers"),
    ],
)
def test_a_size_that_is_none_is_refused_by_its_name(tmp_path: Path, fields: dict[str, object], said: str) -> None:
    path = write(tmp_path, LLAMA | fields)
    with pytest.raises(ConfigError, match=rf"config\.json: {said}: expected a number from 1 to \d+, found"):
        read_config(path)
    for build in (lambda: build_causal_on_meta(path, 256, 8), lambda: build_on_meta(tmp_path)):
        try:
            build()
        except ConfigError as error:
            assert "config.json" in str(error)


@pytest.mark.parametrize("named", ["LlamaForCausalLM", 5, {"a": 1}, [5]])
def test_architectures_that_are_no_names_are_refused(tmp_path: Path, named: object) -> None:
    path = write(tmp_path, LLAMA | {"architectures": named})
    for build in (lambda: build_causal_on_meta(path, 256, 8), lambda: build_on_meta(tmp_path)):
        with pytest.raises(ConfigError, match=r"config\.json.*architectures"):
            build()
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", LLAMA | {"architectures": named})
    assert _architectures(tmp_path) == ()


@pytest.mark.parametrize("document", [b"[" * 5000, b"[]", b"\xff", b"9" * 5000])
def test_an_export_refuses_a_damaged_configuration(tmp_path: Path, document: bytes) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: expected a JSON object, found"):
        write_config(write(tmp_path, document), "float32")
