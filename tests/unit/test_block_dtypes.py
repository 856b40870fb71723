"""Blocks of several dtypes in one model: which has which, and the mathematics of plain torch with the same casts."""

import copy
import json

import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import plain_adamw
from torch import Tensor, nn

from harness.small_models import Block, Tiny, loss_of, tokens
from luwu.core.manifest import ROOT_NAME, Manifest, first_difference
from luwu.errors import ConfigError
from luwu.launch.settings import ROOT
from luwu.models.gpt import GPT, GPTConfig
from luwu.models.gpt import Block as GPTBlock
from luwu.models.settings import GPT_LAYER_PARTS, GPT_PARTS, ModelSettings
from luwu.optim.adamw import AdamW
from luwu.worker.layout import describe
from luwu.worker.parallelize import full_state_dict, parallelize
from luwu.worker.select import modules_outside, select_modules

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


def dtypes_of(model: nn.Module, dtype: torch.dtype, wanted, blocks=None) -> dict[str, str]:
    manifest = describe(model, blocks, dtype, block_dtypes=wanted)
    assert Manifest.from_json(manifest.to_json()) == manifest
    return {block.name: manifest.dtype_of(block) for block in manifest.blocks}


def test_settings_know_the_names_in_the_gpt():
    with torch.device("meta"):
        gpt = GPT(GPTConfig(**ModelSettings().model_dump(exclude={"path"})))
    selected = select_modules(gpt, [GPTBlock])
    layers = [f"blocks.{number}" for number in range(ModelSettings().layers)]
    assert [name for name, _ in modules_outside(gpt, [module for _, module in selected])] == list(GPT_PARTS)
    assert [name for name, _ in gpt.blocks[0].named_modules()][1:] == list(GPT_LAYER_PARTS)
    assert [name for name, _ in selected] == layers and ROOT == ROOT_NAME


def test_patterns_classes_and_the_root_name_blocks():
    layers = {"h.0": "bfloat16", "h.1": "bfloat16", "h.2": "bfloat16"}
    assert dtypes_of(Tiny(), BRAIN, {"h.1": FULL}) == {"<root>": "bfloat16"} | layers | {"h.1": "float32"}
    assert dtypes_of(Tiny(), BRAIN, {"h.[02]": HALF, "h.*": FULL}) == {
        "<root>": "bfloat16", "h.0": "float16", "h.1": "float32", "h.2": "float16",
    }  # fmt: skip
    assert dtypes_of(Tiny(), FULL, {Block: HALF}) == {"<root>": "float32"} | dict.fromkeys(layers, "float16")
    assert dtypes_of(Tiny(), BRAIN, {"<root>": FULL}) == {"<root>": "float32"} | layers


def test_a_part_of_the_root_becomes_a_block():
    found = dtypes_of(Tiny(), BRAIN, {"head": FULL})
    assert found == {"<root>": "bfloat16", "h.0": "bfloat16", "h.1": "bfloat16", "h.2": "bfloat16", "head": "float32"}
    assert list(dtypes_of(Tiny(), BRAIN, {"embed": FULL}))[:2] == ["<root>", "embed"]  # in the model's order


def test_one_dtype_everywhere_leaves_manifests_as_they_were():
    raw = json.loads(describe(Tiny(), None, BRAIN, block_dtypes={"h.1": BRAIN}).to_json())
    assert all("dtype" not in block for block in raw["blocks"])
    assert raw == json.loads(describe(Tiny(), None, BRAIN).to_json())


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            {"layers.*": FULL},
            r"'layers\.\*' matches no block; the model has: <root>, h\.0, h\.1, h\.2, embed, norm, head",
        ),
        ({nn.Conv1d: FULL}, r"Conv1d.*matches no block"),
        ({"*norm": FULL}, r"'\*norm' matches h\.0\.norm inside block h\.0; a block has one dtype: name the block"),
        ({"h.1": torch.float64}, r"block_dtypes\['h\.1'\]: expected one of torch\.float32, .*found torch\.float64"),
        ({"h.1": "float16"}, r"block_dtypes\['h\.1'\]: expected one of torch\.float32, .*found float16"),
    ],
)
def test_what_no_block_is_or_can_have(wanted, message):
    with pytest.raises(ConfigError, match=message):
        parallelize(Tiny(), FakeSession(), dtype=BRAIN, block_dtypes=wanted)
    with pytest.raises(ConfigError, match=r"dtype: expected one of torch\.float32.*found torch\.int8"):
        parallelize(Tiny(), FakeSession(), dtype=torch.int8)


def test_a_tied_parameter_cannot_have_another_dtype_than_the_root():
    with pytest.raises(ConfigError, match=r"head shares the parameter embed\.weight.*give '<root>' that dtype"):
        describe(Tiny(tied=True), None, BRAIN, block_dtypes={"head": FULL})
    found = dtypes_of(Tiny(tied=True), BRAIN, {"<root>": FULL})
    assert found["<root>"] == "float32"


def test_a_store_with_other_dtypes_is_refused_by_the_block():
    stored = describe(Tiny(), None, BRAIN, block_dtypes={"h.1": FULL})
    asked = describe(Tiny(), None, BRAIN, block_dtypes={"h.1": HALF})
    assert first_difference(asked, stored) == "dtype of block h.1: expected float16, found float32"
    assert first_difference(stored, stored) is None


class Casting(nn.Module):
    """Converts what enters a module to its dtype, as plain torch must be told to."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x.to(next(self.module.parameters()).dtype))


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "references"])
@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [(BRAIN, {"h.1": FULL}), (FULL, {"h.*": BRAIN}), (BRAIN, {"<root>": FULL}), (BRAIN, {"head": FULL, "h.0": FULL})],
)
def test_training_is_plain_torchs_with_the_same_casts(dtype, wanted, checkpoint):
    torch.manual_seed(0)
    model = Tiny()
    parts = {"embed": "<root>", "norm": "<root>", "head": "<root>"} | {f"h.{i}": f"h.{i}" for i in range(3)}
    found = dtypes_of(model, dtype, wanted)
    low = copy.deepcopy(model)
    for name, block in parts.items():
        low.get_submodule(name).to(getattr(torch, found[name if name in found else block]))
    masters = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    low.h = nn.ModuleList(Casting(layer) for layer in low.h)
    low.norm, low.head = Casting(low.norm), Casting(low.head)
    optimizer = plain_adamw(nn.ParameterList(masters), lr=1e-2)
    expected = []
    for step in range(4):
        for parameter, master in zip(low.parameters(), masters, strict=True):
            parameter.data.copy_(master.data)
            parameter.grad = None
        loss = loss_of(low, step)
        loss.backward()
        for parameter, master in zip(low.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()
        optimizer.step()
        expected.append(loss.item())
    session = FakeSession()
    parallelize(model, session, dtype=dtype, block_dtypes=wanted, checkpoint=checkpoint)
    ours = AdamW(model, lr=1e-2)
    losses = []
    for step in range(4):
        loss = loss_of(model, step)
        loss.backward()
        ours.step()
        losses.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-6)
    values = full_state_dict(model)
    for (name, _), master in zip(Tiny().named_parameters(), masters, strict=True):
        block = next(part for part in parts if name.startswith(part + "."))
        wanted_dtype = getattr(torch, found[block if block in found else parts[block]])
        assert values[name].dtype is wanted_dtype
        torch.testing.assert_close(values[name], master.detach().to(wanted_dtype), rtol=1e-6, atol=1e-6)
    assert session.endpoint.held == set()


def test_evaluation_and_frozen_blocks_of_several_dtypes():
    torch.manual_seed(0)
    model = Tiny()
    model.h[1].requires_grad_(False)
    expected = copy.deepcopy(model)
    parallelize(model, FakeSession(), dtype=FULL, block_dtypes={"h.1": BRAIN})
    with torch.no_grad():
        torch.testing.assert_close(model(tokens(0)), expected(tokens(0)), rtol=2e-2, atol=2e-2)
    assert full_state_dict(model)["h.1.up.weight"].dtype is BRAIN


def test_float16_in_one_block_asks_for_a_scaled_loss():
    model = parallelize(Tiny(), FakeSession(), dtype=FULL, block_dtypes={"h.1": HALF})
    optimizer = AdamW(model, lr=1e-2)
    assert optimizer.loss_scale == 2.0**16
    before = float(loss_of(model, 0).detach())
    optimizer.zero_grad()
    for _ in range(5):
        optimizer.scale(loss_of(model, 0)).backward()
        optimizer.step()
        assert optimizer.last_step_committed
    optimizer.zero_grad()
    with torch.no_grad():
        assert float(loss_of(model, 0)) < before
