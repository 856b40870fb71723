"""The mathematics is plain torch's: same losses and parameters for every kind of model."""

import copy

import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import assert_absent, assert_same_state, assert_same_training, train
from torch import Tensor, nn

from harness.small_models import VOCABULARY, WIDTH, Block, Tiny, loss_of, tokens
from luwu.optim.adamw import AdamW
from luwu.worker.parallelize import full_state_dict, parallelize

BOTH_WAYS = pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "references"])


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@BOTH_WAYS
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_language_model(checkpoint, tied):
    model = Tiny(tied=tied)
    assert_same_training(model, checkpoint=checkpoint)
    assert_absent(model)
    assert (model.head.weight is model.embed.weight) == tied


@BOTH_WAYS
def test_dropout_uses_the_same_mask_when_recomputed(checkpoint):
    assert_same_training(Tiny(dropout=0.4), checkpoint=checkpoint)


@BOTH_WAYS
def test_frozen_units_and_frozen_embedding(checkpoint):
    model = Tiny()
    model.embed.requires_grad_(False)
    model.h[0].requires_grad_(False)
    model.h[2].requires_grad_(False)
    frozen = copy.deepcopy(model.h[2].state_dict())
    session = FakeSession()
    assert_same_training(model, session=session, checkpoint=checkpoint)
    values = full_state_dict(model)
    assert all(torch.equal(values[f"h.2.{name}"], value) for name, value in frozen.items())
    pushed = {session.store.blocks[block].manifest.name for what, block in session.endpoint.log if what == "push"}
    assert pushed == {"<root>", "h.1"}


class LowRank(nn.Module):
    """A frozen layer with a trainable low-rank addition: two blocks in one unit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.down = nn.Linear(width, 2, bias=False)
        self.up = nn.Linear(2, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.base(x) + self.up(self.down(x)))


@BOTH_WAYS
def test_frozen_and_trainable_parameters_in_one_unit(checkpoint):
    model = Tiny()
    model.embed.requires_grad_(False)
    model.h = nn.ModuleList(LowRank(WIDTH) for _ in range(3))
    assert_same_training(model, blocks=[LowRank], checkpoint=checkpoint)


class Unused(Block):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 5)


@BOTH_WAYS
def test_unused_parameters_get_zero_gradients(checkpoint):
    model = Tiny()
    model.h = nn.ModuleList([Unused(), Block(), Unused()])
    model.spare = nn.Parameter(torch.randn(7))
    assert_same_training(model, blocks=["h.*"], checkpoint=checkpoint)


class SkipsLayers(Tiny):
    """Each step leaves another layer out, so the pass is never as foretold."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        left_out = int(torch.randint(len(self.h), ()))
        order = torch.randperm(len(self.h)).tolist()
        for index in order:
            if index != left_out:
                x = self.h[index](x)
        return self.head(self.norm(x))


@BOTH_WAYS
def test_order_of_units_may_change(checkpoint):
    assert_same_training(SkipsLayers(depth=5), steps=8, checkpoint=checkpoint)


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.convolution(x)))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Convolution() for _ in range(3)))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(-1))


def test_batch_norm_buffers_stay_with_the_worker():
    def loss(model: nn.Module, step: int) -> Tensor:
        return model(torch.randn(4, WIDTH, 9)).square().mean()

    model = Convolutions()  # the first unit's input needs no gradient
    assert_same_training(model, loss, blocks=[Convolution], checkpoint=False)
    assert model.layers[0].norm.num_batches_tracked == 4


class Gate(nn.Module):
    """Takes and returns nested containers, None, and tensors that are only passed on."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, state: dict, *, bias: Tensor | None = None, power: int = 1) -> tuple:
        mixed = torch.sin(self.mix(x)) * self.scale**power
        if bias is not None:
            mixed = mixed + bias
        return mixed + state["sum"], {"sum": state["sum"] + mixed, "first": state["first"]}, None, self.scale


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(Gate() for _ in range(3))
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        state = {"sum": torch.zeros_like(x), "first": x * self.bias}
        aside = x.new_zeros(())
        for index, gate in enumerate(self.gates):
            x, state, nothing, scale = gate(x, state, bias=self.bias if index else None, power=2)
            assert nothing is None
            aside = aside + scale
        return {"output": x + state["first"], "aside": aside}


@BOTH_WAYS
def test_nested_arguments_and_outputs(checkpoint):
    def loss(model: nn.Module, step: int) -> Tensor:
        output = model(torch.randn(4, WIDTH))
        return output["output"].square().mean() + 0.1 * output["aside"]

    assert_same_training(Gated(), loss, checkpoint=checkpoint)


class Tower(nn.Module):
    """Branches on raw input: no unit's input needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([branch(x) for branch in self.branches]).sum()


@BOTH_WAYS
def test_units_whose_inputs_need_no_gradient(checkpoint):
    def loss(model: nn.Module, step: int) -> Tensor:
        return model(torch.randn(4, 5)).square()

    session = FakeSession(window_bytes=3 * 4096)  # no more than two units, though none has an end in backward
    assert_same_training(Tower(), loss, session=session, blocks=["branches.*"], checkpoint=checkpoint)


def test_evaluation_between_and_within_steps():
    model, session = Tiny(), FakeSession()
    peer = copy.deepcopy(model)
    parallelize(model, session)
    optimizer, peer_optimizer = AdamW(model), torch.optim.AdamW(peer.parameters())
    for step in range(3):
        for each, its in ((model, optimizer), (peer, peer_optimizer)):
            loss = loss_of(each, step)
            with torch.no_grad():
                between = each(tokens(step))
            loss.backward()
            its.step()
            its.zero_grad()
            with torch.inference_mode():
                after = each(tokens(step))
            if each is model:
                found = between, after
        torch.testing.assert_close(found, (between, after))
    assert session.endpoint.held == set()
    assert (session.step, session.attempts) == (3, 3)
    assert_same_state(full_state_dict(model), peer.state_dict(), 1e-5)


def test_first_layers_without_gradients():
    class HalfFrozen(Tiny):
        def forward(self, tokens: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.h[0](self.embed(tokens))
            return self.head(self.norm(self.h[2](self.h[1](x))))

    assert_same_training(HalfFrozen())


def test_bfloat16_with_a_float32_master():
    model = Tiny()
    peer = copy.deepcopy(model).bfloat16()
    masters = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-2, foreach=False)
    expected = []
    for step in range(4):
        loss = loss_of(peer, step)
        loss.backward()
        for master, parameter in zip(masters, peer.parameters(), strict=True):
            master.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        for master, parameter in zip(masters, peer.parameters(), strict=True):
            parameter.data = master.detach().bfloat16()
        expected.append(loss.item())
    parallelize(model, FakeSession(), dtype=torch.bfloat16)
    assert model.head.weight.dtype == torch.bfloat16
    assert train(model, AdamW(model, lr=1e-2), range(4)) == expected
    assert_same_state(full_state_dict(model), peer.state_dict(), 0.0)


def test_sparse_embedding_gradients():
    def loss(model: nn.Module, step: int) -> Tensor:
        return model(tokens(step)).square().mean()

    model, session = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH, sparse=True), nn.Linear(WIDTH, 3)), FakeSession()
    peer = copy.deepcopy(model)
    peer[0].sparse = False
    parallelize(model, session, blocks=["1"])
    train(model, AdamW(model), range(2), loss)
    train(peer, torch.optim.AdamW(peer.parameters()), range(2), loss)
    assert_same_state(full_state_dict(model), peer.state_dict())
