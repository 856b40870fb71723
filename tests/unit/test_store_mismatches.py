"""A checkpoint that is not the model's is refused by name; other names of the same tensors are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.pretrained import auto_class, same_bits, save
from torch import Tensor

from luwu.errors import (
    CheckpointError,
    ConfigError,
)
from luwu.models.importing import import_pretrained
from luwu.store.exporting import export_safetensors


def spoil(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_tensors_that_are_not_the_models_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for change, part in (
        (lambda found: found.pop("model.norm.weight"), r"missing are 1 \(model.norm.weight\), and 0 are not"),
        (
            lambda found: found.update(other=torch.ones(2)),
            r"0 \(none\), and 1 are not the model's \(other\)",
        ),
        (
            lambda found: found.update({"model.norm.weight": torch.ones(31)}),
            r"tensor model.norm.weight: expected shape \[32\], found \[31\]",
        ),
        (
            lambda found: found.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}),
            "expected float32, bfloat16, float16 or float64, found torch.int8; name a checkpoint that is not quantised",
        ),
        (
            lambda found: found.update({"model.norm.weight": torch.ones(32).to(torch.float8_e4m3fn)}),
            "expected float32, bfloat16, float16 or float64, found torch.float8_e4m3fn",
        ),
    ):
        save("llama", folder)
        spoil(folder, change)
        with pytest.raises(CheckpointError, match=part):
            import_pretrained(folder, [tmp_path / "store"])
        assert not (tmp_path / "store").exists()


def test_experts_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    name = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
    for change in (lambda found: found.pop(name), lambda found: found.update({name: torch.ones(5, 5)})):
        save("mixtral", tmp_path / "in")
        spoil(tmp_path / "in", change)
        with pytest.raises(CheckpointError, match=r"layers\.1\..*mlp\.experts\.gate_up_proj"):
            import_pretrained(tmp_path / "in", [tmp_path / "store"])


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    save("gpt2", tmp_path / "in")
    spoil(tmp_path / "in", lambda found: found.update({"ln_f.weight": torch.ones(32)}))
    with pytest.raises(CheckpointError, match=r"and transformer\.ln_f\.weight are both transformer\.ln_f\.weight"):
        import_pretrained(tmp_path / "in", [tmp_path / "store"])


def test_a_tied_parameter_may_have_any_of_its_names_but_one_value(tmp_path: Path) -> None:
    model = save("gpt2", tmp_path / "in")

    def rename(found: dict[str, Tensor]) -> None:
        found["lm_head.weight"] = found.pop("transformer.wte.weight")

    spoil(tmp_path / "in", rename)
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    export_safetensors([tmp_path / "store"], tmp_path / "out")
    same_bits(auto_class("gpt2").from_pretrained(tmp_path / "out"), model)
    spoil(tmp_path / "in", lambda found: found.update({"transformer.wte.weight": found["lm_head.weight"] + 1}))
    with pytest.raises(CheckpointError, match=r"transformer.wte.weight and lm_head.weight are one parameter"):
        import_pretrained(tmp_path / "in", [tmp_path / "other"])


def test_names_without_the_base_models_prefix_are_found(tmp_path: Path) -> None:
    model = save("gpt2", tmp_path / "in")

    def shorten(found: dict[str, Tensor]) -> None:
        for name in list(found):
            found[name.removeprefix("transformer.")] = found.pop(name)
        found["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)  # a buffer of older versions, which is left out

    spoil(tmp_path / "in", shorten)
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    export_safetensors([tmp_path / "store"], tmp_path / "out")
    same_bits(auto_class("gpt2").from_pretrained(tmp_path / "out"), model)


def test_a_model_that_cannot_be_built_is_named(tmp_path: Path) -> None:
    save("llama", tmp_path / "in")
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    for change, part in (
        (
            {"architectures": ["NoSuchModel"]},
            r"architectures: expected a class of .* found \['NoSuchModel'",
        ),
        ({"model_type": "no-such-type"}, "config.json: .*no-such-type"),
    ):
        (tmp_path / "in" / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ConfigError, match=part):
            import_pretrained(tmp_path / "in", [tmp_path / "store"])
    with pytest.raises(ConfigError, match=r"expected config\.json there, found none"):
        import_pretrained(tmp_path / "nowhere", [tmp_path / "store"])
