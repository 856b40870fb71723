"""Calls of torch that would go wrong unnoticed on a parallelized model give an error or a warning with a remedy."""

import contextlib
import copy
import io
import math
import warnings

import pytest
import safetensors.torch
import torch
from tests.unit.fake_session import FakeSession
from torch import nn

from harness.small_models import Block, Tiny, loss_of
from luwu import AdamW, full_state_dict, parallelize
from luwu.errors import ConfigError

REMEDY = r"parameter {}: .*luwu\.full_state_dict\(model\).*luwu export"


class WithBuffer(Tiny):
    def __init__(self) -> None:
        super().__init__(depth=2)
        self.statistics = nn.BatchNorm1d(3, affine=False)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return WithBuffer()


def test_a_state_dict_of_placeholders_is_refused(model, tmp_path):
    names = list(model.state_dict())
    parallelize(model, FakeSession(), [Block])
    for whole in (model, nn.ModuleDict({"inner": model})):
        with pytest.raises(ConfigError, match=REMEDY.format(r"(inner\.)?embed\.weight")):
            torch.save(whole.state_dict(), tmp_path / "model.pt")
    assert list(tmp_path.iterdir()) == []
    assert list(model.state_dict(keep_vars=True)) == names == list(full_state_dict(model))


USES = {
    "torch.save": lambda value: torch.save({"weight": value}, io.BytesIO()),
    "safetensors": lambda value: safetensors.torch.save({"weight": value}),
    "clone": lambda value: value.clone(),
    "deepcopy": copy.deepcopy,
    "to": lambda value: value.to(torch.bfloat16),
    "numpy": lambda value: value.numpy(),
    "arithmetic": lambda value: 0.5 * value,
    "item": lambda value: value[0].item(),
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("use", USES)
def test_a_part_tells_names_and_shapes_but_no_values(model, use, frozen):
    """Libraries such as peft ask modules for their names."""
    model.norm.requires_grad_(not frozen)
    parallelize(model, FakeSession(), [Block])
    state = model.norm.state_dict(prefix="part.")
    assert {name: (value.shape, value.dtype) for name, value in state.items()} == {
        "part.weight": ((12,), torch.float32),
        "part.bias": ((12,), torch.float32),
    }
    assert "Placeholder" in repr(state)
    with pytest.raises(ConfigError, match=REMEDY.format(r"part\.weight")):
        USES[use](state["part.weight"])


def test_what_has_its_values_may_be_saved_and_loaded(model):
    parallelize(model, FakeSession(), [Block])
    assert set(model.statistics.state_dict()) == {"running_mean", "running_var", "num_batches_tracked"}
    model.load_state_dict(dict(model.named_buffers()), strict=False)
    optimizer = AdamW(model)
    assert optimizer.state_dict()["state"] == {}


def test_a_model_that_is_not_parallelized_is_as_it_was(model):
    twin = copy.deepcopy(model)
    parallelize(model, FakeSession(), [Block])
    assert list(twin.state_dict()) == list(full_state_dict(model))
    loss_of(twin, 0).backward()
    assert float(nn.utils.clip_grad_norm_(twin.parameters(), 1.0)) > 0
    assert {type(parameter) for parameter in twin.parameters()} == {nn.Parameter}


def test_clipping_with_torch_is_warned_of_once(model):
    parallelize(model, FakeSession(), [Block])
    optimizer = AdamW(model)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for step in range(3):
            loss_of(model, step).backward()
            assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) == 0.0
            optimizer.step()
            optimizer.zero_grad()
    assert len(found) == 1
    assert "finds no gradients" in str(found[0].message) and "max_grad_norm" in str(found[0].message)
    assert found[0].filename == __file__


def test_the_warning_names_the_function_that_clips(model):
    parallelize(model, FakeSession(), [Block])
    AdamW(model)
    loss_of(model, 0).backward()
    with (
        pytest.warns(UserWarning, match=r"clip_grad_value_ of a parallelized model: .* clips nothing;"),
        contextlib.suppress(RuntimeError),  # torch's own, of a list without gradients
    ):
        nn.utils.clip_grad_value_(model.parameters(), 1.0)


def test_nobody_else_is_warned(model):
    parallelize(model, FakeSession(), [Block])
    optimizer = AdamW(model, max_grad_norm=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_of(model, 0).backward()
        assert all(parameter.grad is None for parameter in model.parameters())
        assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())
        assert not any("placeholder" in repr(parameter) for parameter in model.parameters())
        nn.utils.clip_grad_norm_(model.parameters(), math.inf)  # an infinite limit only measures the norm
        model.zero_grad()
        optimizer.step()
