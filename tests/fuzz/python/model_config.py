"""A model's config.json: refused by its name, or sizes that can be planned with. transformers reads it elsewhere."""

from __future__ import annotations

from unittest import mock

from tests.fuzz.python.support import Input, allowing, edited, put, scratch

from luwu.errors import ConfigError, LuwuError
from luwu.launch.rates import _width_of
from luwu.models.config_file import MOST_PARTS, read_config_file, text_fields
from luwu.models.config_shape import least_shape
from luwu.models.sizes import check_config
from luwu.plan import model_presets
from luwu.store.model_files import write_config
from luwu.store.upkeep import _architectures

LLAMA = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32, "vocab_size": 300,
    "max_position_embeddings": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": True,
    "rope_scaling": {"factor": [1.5]}, "dtype": "float32",
}  # fmt: skip
OPT = {"model_type": "opt", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 300,
       "ffn_dim": 32, "max_position_embeddings": 64}  # fmt: skip
CONFIGS = (LLAMA, OPT, {"model_type": "whole", "text_config": LLAMA})


def test_one_input(data: bytes) -> None:
    given = Input(data)
    how = given.number()
    folder = scratch()
    (folder / "model").mkdir()
    path = folder / "model" / "config.json"
    put(path, edited(CONFIGS[how // 4 % len(CONFIGS)], given), how)
    raw = allowing(ConfigError, lambda: read_config_file(path, "model"))
    with mock.patch.object(model_presets, "_count", lambda shape, file: shape):  # which asks transformers
        shape = allowing(ConfigError, lambda: model_presets.read_config(path.parent))
    allowing(ConfigError, lambda: check_config(path, 256, 32))
    least = least_shape(path)
    width = _width_of(path)
    assert width is None or width > 0, "a width is one"
    names = allowing(LuwuError, lambda: _architectures(folder)) or ()
    assert all(name.encode() is not None for name in names), "names can be shown"
    if raw is None:
        assert shape is None and width is None, "what is refused is refused by all"
    else:
        assert text_fields(raw).get("num_labels", 0) is not None
    if least is not None:
        assert shape is not None and 0 < least.parameters <= shape.parameters, "a part is no more than the whole"
    if shape is not None:
        assert 0 < shape.layers <= MOST_PARTS and shape.parameters > 0, "a shape can be planned with"
    allowing(LuwuError, lambda: write_config(path, "float32"))
