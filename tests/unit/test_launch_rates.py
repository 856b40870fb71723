"""The learning rate of a run without one in its settings."""

import json
from pathlib import Path

import pytest

from luwu.core.settings import read_toml, to_toml
from luwu.launch.folder import RunFolder
from luwu.launch.rates import with_rate
from luwu.launch.settings import build_settings
from luwu.optim.rates import fine_tuning_rate_for, rate_for
from luwu.optim.table import OPTIMIZERS

GPT3 = {768: 6e-4, 1024: 3e-4, 1536: 2.5e-4, 2048: 2e-4, 2560: 1.6e-4}
"""Width and learning rate of arXiv:2005.14165, table 2.1."""


def chosen(tmp_path: Path, *overlays, **options):
    settings, why = with_rate(build_settings(*overlays), RunFolder(tmp_path / "run"), **options)
    return settings.optimizer.lr, why


@pytest.mark.parametrize("width", GPT3)
def test_rates_are_near_those_that_models_of_this_width_were_trained_with(width):
    assert rate_for("adamw", width) == pytest.approx(GPT3[width], rel=0.3)


def test_the_default_model_learns_as_before_and_wider_ones_slower(tmp_path):
    assert chosen(tmp_path) == (3e-3, "learning rate up to 0.003, for adamw and a width of 128; --lr sets another")
    lr, why = chosen(tmp_path, {"model": {"hidden": 2048, "layers": 20}})
    assert lr == 1.9e-4 and "width of 2048" in why
    assert chosen(tmp_path, {"model": {"hidden": 32}})[0] == 3e-3


def test_every_optimizer_has_a_rate(tmp_path):
    for name, entry in OPTIMIZERS.items():
        narrow, wide = rate_for(name, 128), rate_for(name, 1024)
        assert narrow == entry.rate
        assert wide == (narrow if name == "sgd" else pytest.approx(narrow / 8, rel=0.05))
    assert rate_for("lion", 1024) == pytest.approx(rate_for("adamw", 1024) / 10, rel=0.03)
    assert chosen(tmp_path, {"optimizer": {"name": "lion"}})[0] == 3e-4


def test_a_given_rate_wins_and_a_saved_one_stays(tmp_path):
    assert chosen(tmp_path, {"optimizer": {"lr": 0.5}}) == (0.5, "")
    first, _ = with_rate(build_settings({"model": {"hidden": 256}}), RunFolder(tmp_path))
    (tmp_path / "saved.toml").write_text(to_toml(first))
    saved = read_toml(tmp_path / "saved.toml")
    assert chosen(tmp_path, saved) == (1.5e-3, "")
    assert chosen(tmp_path, saved, {"optimizer": {"lr": 0.25}}) == (0.25, "")


def test_weights_are_fine_tuned(tmp_path):
    model = tmp_path / "llama"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"hidden_size": 512}))
    of_model = {"model": {"path": str(model)}}
    assert chosen(tmp_path, of_model)[0] == rate_for("adamw", 512)
    (model / "model.safetensors").touch()
    lr, why = chosen(tmp_path, of_model)
    assert lr == 2e-5 and "fine-tuning with adamw" in why
    assert chosen(tmp_path, of_model, {"optimizer": {"name": "lion"}})[0] == fine_tuning_rate_for("lion") == 2e-6
    assert chosen(tmp_path, takes_weights=True)[0] == 2e-5
    (tmp_path / "run" / "store").mkdir(parents=True)
    (tmp_path / "run" / "store" / "origin.json").touch()
    assert chosen(tmp_path)[0] == 2e-5


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({"n_embd": 768}, 768),
        ({"text_config": {"hidden_size": 640}}, 640),
        ({"d_model": 512, "text_config": {"hidden_size": 640}}, 512),
    ],
)
def test_the_width_of_a_configuration(tmp_path, config, width):
    (tmp_path / "config.json").write_text(json.dumps(config))
    lr, why = chosen(tmp_path, {"model": {"path": str(tmp_path / "config.json")}})
    assert lr == rate_for("adamw", width) and f"width of {width};" in why


def test_a_configuration_that_tells_no_width(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    lr, why = chosen(tmp_path, {"model": {"path": str(tmp_path / "config.json")}})
    assert lr == rate_for("adamw", 2048) and "does not tell its own" in why
