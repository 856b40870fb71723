"""The planner's models against the models themselves."""

import json
import re

import pytest
import torch

from luwu.errors import ConfigError
from luwu.models.gpt import GPT, Block, GPTConfig
from luwu.models.pretrained import build_causal_on_meta
from luwu.models.shapes import BLOCK_ALIGNMENT_ELEMENTS, gpt_shape
from luwu.plan.choices import Choices
from luwu.plan.model_presets import MODELS, find_model, read_config
from luwu.plan.requests import choose_model
from luwu.worker.flatten import ALIGNMENT_ELEMENTS
from luwu.worker.layout import describe

CONFIGS = {
    "gpt2": {"n_layer": 2, "n_embd": 96, "n_head": 4, "n_positions": 48, "vocab_size": 101},
    "opt": {
        "num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 4, "ffn_dim": 160, "vocab_size": 101,
        "max_position_embeddings": 48, "word_embed_proj_dim": 96,
    },
    "llama": {
        "num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 160, "vocab_size": 101,
    },
    "qwen2": {
        "num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 160, "vocab_size": 101, "tie_word_embeddings": True,
    },
    "mixtral": {
        "num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 160, "vocab_size": 101, "num_local_experts": 4, "num_experts_per_tok": 2,
    },
}  # fmt: skip


def folder_of(kind, config, folder):
    (folder / "config.json").write_text(json.dumps({"model_type": kind} | config))
    return folder


def parameters_in_transformers(kind, config):
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_hugging_face_folder_has_as_many_parameters_as_the_model_it_describes(kind, tmp_path):
    shape = find_model(str(folder_of(kind, CONFIGS[kind], tmp_path)))
    assert shape.parameters == parameters_in_transformers(kind, CONFIGS[kind])
    assert shape.layers == 2


OTHERS = {
    "qwen3": CONFIGS["llama"] | {"head_dim": 32},
    "gpt_neox": {
        "num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 160,
        "vocab_size": 101,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_parameters_of_other_kinds_are_counted_in_transformers_own_model(kind, tmp_path):
    shape = find_model(str(folder_of(kind, OTHERS[kind], tmp_path)))
    assert shape.counted is not None
    assert shape.parameters == parameters_in_transformers(kind, OTHERS[kind])


@pytest.mark.parametrize(("vocabulary", "sequence"), [(77, 20), (5000, 20), (5000, 3000), (77, 3000)])
def test_blocks_are_those_that_luwu_train_has(vocabulary, sequence):
    with torch.device("meta"):
        model = GPT(GPTConfig(layers=3, hidden=48, heads=4, seq=sequence, vocabulary=vocabulary))
    blocks = [block.elements for block in describe(model, [Block]).blocks]
    assert gpt_shape(3, 48, 4, sequence=sequence, vocabulary=vocabulary, biases=False).block_elements() == blocks
    assert BLOCK_ALIGNMENT_ELEMENTS == ALIGNMENT_ELEMENTS


@pytest.mark.parametrize("vocabulary", [16, 2000])
@pytest.mark.parametrize("kind", [*CONFIGS, *OTHERS])
def test_blocks_are_those_that_the_worker_has(kind, vocabulary, tmp_path):
    config = (CONFIGS | OTHERS)[kind] | {"vocab_size": vocabulary}
    folder = folder_of(kind, config, tmp_path)
    shape = find_model(str(folder))
    blocks = [block.elements for block in describe(build_causal_on_meta(folder, vocabulary=1, seq=2)).blocks]
    assert len(shape.block_elements()) == len(blocks)
    assert shape.block_elements() == pytest.approx(blocks, rel=0.02)  # parameters of a layer are padded one by one


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-405b", 405_853_388_800),
        ("qwen2.5-7b", 7_615_616_512),
        ("mixtral-8x7b", 46_702_792_704),
        ("175b", 174_604_468_224),
    ],
)
def test_presets_have_the_published_number_of_parameters(name, parameters):
    assert MODELS[name].parameters == parameters


def test_a_mixture_passes_a_token_through_its_chosen_experts_alone():
    model = MODELS["mixtral-8x7b"]
    active = model.layers * model.active_layer_size + model.outside_size
    assert active == pytest.approx(12.9e9, rel=0.01)  # arXiv 2401.04088
    assert model.forward_flop_per_token() < 2.2 * active


def test_flop_are_counted_as_megatron_counts_them():
    model = gpt_shape(96, 12288, 96, sequence=2048, vocabulary=51200)
    layers, hidden, seq, vocabulary = 96, 12288, 2048, 51200
    published = 96 * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocabulary / (16 * layers * hidden))
    assert seq * model.step_flop_per_token(recompute=True) == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize(
    ("content", "message"),
    [("[]", "found no object but"), ("{", "expected the JSON object"), ('{"hidden_size": 0}', "num_attention_heads")],
)
def test_a_bad_config_is_refused_by_its_field(content, message, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path)


def test_an_unknown_model_names_those_near_it():
    with pytest.raises(ConfigError, match=r"found 'llama-3-8b'; near it: llama-3\.1-8b"):
        find_model("llama-3-8b")
    with pytest.raises(ConfigError, match=r"found 'zzzz'; those known: .*175b.*; or a folder with a config\.json"):
        find_model("zzzz")
    with pytest.raises(ConfigError, match=r"^model: expected a known name or .*, found no \./nope; check it$"):
        find_model("./nope")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"layers": 10**9}, "model.layers: expected at most 100000"),
        ({"hidden": 10**7}, "model.hidden: "),
        ({"hidden": 100, "heads": 3}, "model.hidden: expected a multiple of"),
        ({"vocabulary": 2**40}, "vocabulary: expected 1 to 16777216"),
        ({"seq": 1}, "model.seq: "),
    ],
)
def test_a_shape_that_cannot_be_is_refused_at_once(wrong, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        choose_model(Choices(**({"layers": 4, "hidden": 256, "heads": 4} | wrong)))
