"""Weight decay for matrices alone: which parameters are in which group."""

import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import train
from torch import nn

import luwu
from harness.small_models import Tiny
from luwu.errors import ConfigError
from luwu.launch.settings import build_settings
from luwu.optim.choosing import make_optimizer, optimizer_class
from luwu.optim.settings import OptimizerSettings


class Mixed(nn.Module):
    """Something of everything that does not decay, and two that do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.LayerNorm((4, 5))  # a matrix of a norm
        self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True)
        self.scale = nn.Parameter(torch.ones(3))
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def names(model: nn.Module, group: dict) -> set[str]:
    members = {id(parameter) for parameter in group["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in members}


def test_matrices_decay_and_nothing_else() -> None:
    model = Mixed()
    decayed, kept = luwu.decay_groups(model, 0.3)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.3, 0.0)
    assert names(model, decayed) == {"conv.weight", "attention.in_proj_weight", "attention.out_proj.weight"}
    assert names(model, kept) == {
        "conv.bias", "norm.weight", "norm.bias", "attention.in_proj_bias", "attention.out_proj.bias",
        "attention.bias_k", "attention.bias_v", "scale",
    }  # fmt: skip


def test_a_group_without_parameters_is_left_out() -> None:
    assert [group["weight_decay"] for group in luwu.decay_groups(nn.Linear(2, 2, bias=False), 0.1)] == [0.1]
    with pytest.raises(ConfigError, match="expected trainable parameters, found none in Linear"):
        luwu.decay_groups(nn.Linear(2, 2).requires_grad_(False), 0.1)


def test_tied_parameters_are_in_one_group() -> None:
    model = Tiny(tied=True)
    found = [id(parameter) for group in luwu.decay_groups(model, 0.1) for parameter in group["params"]]
    assert len(found) == len(set(found)) == len(list(model.parameters()))


def test_groups_of_a_parallelized_model() -> None:
    session = FakeSession()
    model = luwu.parallelize(Tiny(), session)
    optimizer = luwu.AdamW(luwu.decay_groups(model, 0.1))
    train(model, optimizer, range(1))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert len(session.segments[1]) == 5  # norm, up.weight, up.bias, down.weight, down.bias


@pytest.mark.parametrize("name", ["adamw", "adamw8bit", "adam", "sgd", "lion", "adagrad"])
def test_the_settings_of_a_run_name_every_optimizer(name: str) -> None:
    settings = build_settings({"optimizer": {"name": name, "lr": 0.5, "decays": "matrices", "weight_decay": 0.2}})
    model = luwu.parallelize(Tiny(), FakeSession(), optimizer=optimizer_class(settings.optimizer))
    optimizer = make_optimizer(settings.optimizer, model)
    assert optimizer.kind == name
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.5, 0.2), (0.5, 0.0)]
    assert make_optimizer(OptimizerSettings(name=name), model).param_groups[0]["weight_decay"] == 0.1
