"""Micro-batches inside units: the same mathematics and traffic, however many rows are computed at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from tests.unit.fake_session import FakeSession, StoredBlock
from tests.unit.worker_models import assert_same_state, assert_same_training, run_workers, train
from torch import Tensor, nn

from harness import model_families
from harness.small_models import VOCABULARY, WIDTH, Block, Tiny, loss_of, tokens
from luwu.errors import ConfigError
from luwu.models.gpt import GPT, GPTConfig
from luwu.models.gpt import Block as GPTBlock
from luwu.optim.adamw import AdamW
from luwu.session.session import Session
from luwu.worker.parallelize import full_state_dict, parallelize

BOTH_WAYS = pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "references"])
ROWS = 4  # of worker_models.tokens


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Counting(Block):
    """Gives a function the rows of each call: a list in the module would be state, which a recompute restores."""

    def __init__(self, note: Callable[[int], None]) -> None:
        super().__init__()
        self.note = note

    def forward(self, x: Tensor) -> Tensor:
        self.note(len(x))
        return super().forward(x)


def counting_model(depth: int = 2) -> tuple[Tiny, list[int]]:
    model, seen = Tiny(depth=depth), []
    model.h = nn.ModuleList(Counting(seen.append) for _ in range(depth))
    return model, seen


def gpt_loss(model: nn.Module, step: int) -> Tensor:
    text = torch.randint(256, (ROWS, 9), generator=torch.Generator().manual_seed(step))
    return model(text[:, :-1], text[:, 1:]).loss


@BOTH_WAYS
@pytest.mark.parametrize("size", [1, 3, ROWS, 100])
def test_a_gpt_learns_as_with_plain_torch(size, checkpoint):
    model = GPT(GPTConfig(layers=3, hidden=16, heads=2, seq=8))
    assert_same_training(
        model, gpt_loss, blocks=[GPTBlock], micro_batch_size=size, checkpoint=checkpoint, tolerance=1e-5
    )


@pytest.mark.parametrize(("size", "slices"), [(1, [1, 1, 1, 1]), (3, [3, 1]), (ROWS, [4]), (None, [4])])
def test_a_unit_sees_so_many_rows_at_a_time(size, slices):
    model, seen = counting_model()
    parallelize(model, FakeSession(), blocks=[Counting], micro_batch_size=size)
    optimizer = AdamW(model)
    loss = loss_of(model, 0)
    assert seen == 2 * slices
    seen.clear()
    loss.backward()
    assert seen == 2 * slices[::-1]  # recomputed, the last slice first
    optimizer.step()
    seen.clear()
    with torch.no_grad():
        assert model(tokens(0)).shape == (ROWS, 7, VOCABULARY)
    assert seen == 2 * slices


@pytest.mark.host_only
@BOTH_WAYS
def test_a_step_pulls_and_pushes_what_it_does_without(checkpoint):
    logs = []
    for size in (None, 1):
        model, session = Tiny(depth=3), FakeSession()
        parallelize(model, session, micro_batch_size=size, checkpoint=checkpoint)
        train(model, AdamW(model), range(3))
        logs.append(session.endpoint.log)
    assert logs[0] == logs[1]


@pytest.mark.parametrize("family", ["gpt2", "llama", "mixtral", "bert_mlm", "vit", "t5"])
def test_models_of_transformers(family):
    model = model_families.make(family)
    model.config.output_router_logits = False  # layers hand these out past their outputs
    loss = model_families.loss_of(family)
    assert_same_training(model, loss, steps=2, micro_batch_size=3, tolerance=1e-4)


@BOTH_WAYS
def test_frozen_and_tied_parameters(checkpoint):
    model = Tiny(tied=True)
    model.h[0].requires_grad_(False)
    model.h[2].up.requires_grad_(False)
    assert_same_training(model, micro_batch_size=3, checkpoint=checkpoint, tolerance=1e-5)


@BOTH_WAYS
def test_parameters_shared_between_units_lie_in_the_root(checkpoint):
    model = Tiny()
    model.h[2].up.weight = model.h[0].up.weight
    assert_same_training(model, micro_batch_size=1, checkpoint=checkpoint, tolerance=1e-5)


def test_dropout_is_drawn_again_for_each_slice():
    trained = []
    for checkpoint in (True, False):
        torch.manual_seed(0)
        model = Tiny(dropout=0.4)
        parallelize(model, FakeSession(), micro_batch_size=1, checkpoint=checkpoint)
        losses = train(model, AdamW(model, lr=1e-2), range(3))
        trained.append((losses, full_state_dict(model)))
    assert trained[0][0] == trained[1][0]
    assert_same_state(trained[0][1], trained[1][1], 0.0)


def test_two_runs_give_the_same_bits():
    states = []
    for _ in range(2):
        torch.manual_seed(0)
        model = Tiny(dropout=0.2)
        parallelize(model, FakeSession(), dtype=torch.bfloat16, micro_batch_size=1)
        train(model, AdamW(model, lr=1e-2), range(3))
        states.append(full_state_dict(model))
    assert_same_state(*states, 0.0)


@BOTH_WAYS
def test_bfloat16_gradients_are_summed_in_float32_and_rounded_once(checkpoint, monkeypatch):
    gradients: dict[str, Tensor] = {}
    update = StoredBlock.update

    def record(block: StoredBlock, gradient: Tensor, groups: list) -> None:
        gradients[block.manifest.name] = gradient.clone()
        update(block, gradient, groups)

    monkeypatch.setattr(StoredBlock, "update", record)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 1))
    peer = copy.deepcopy(model).bfloat16()
    data = torch.randn(40, 6).bfloat16()
    parallelize(model, FakeSession(), blocks=["1"], dtype=torch.bfloat16, micro_batch_size=1, checkpoint=checkpoint)
    optimizer = AdamW(model)
    model(data).sum().backward()
    optimizer.step()
    total = torch.zeros(5, 5)
    rounded = torch.zeros(5, 5, dtype=torch.bfloat16)
    for row in reversed(data.split(1)):
        (part,) = torch.autograd.grad(peer(row).sum(), peer[1].weight)
        total += part.float()
        rounded += part
    found = gradients["1"][: total.numel()].view(5, 5)
    assert torch.equal(found, total.bfloat16())
    assert not torch.equal(found, rounded)


class Masked(nn.Module):
    """Takes a mask for all rows or for each, by name, and returns more than one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, state: dict, *, mask: Tensor | None = None, positions: Tensor) -> tuple:
        mixed = torch.sin(self.mix(x)) * self.scale + positions.unsqueeze(-1) * 0.1
        if mask is not None:
            mixed = mixed * mask.unsqueeze(-1)
        return x + mixed, {"sum": state["sum"] + mixed, "steps": state["steps"] + 1}, None, positions, self.scale


class Arguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Masked() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        rows, length = x.shape[:2]
        masks = [None, torch.ones(1, length), torch.rand(rows, length)]
        state, positions = {"sum": torch.zeros_like(x), "steps": 0}, torch.arange(length)
        for layer, mask in zip(self.layers, masks, strict=True):
            x, state, nothing, positions, scale = layer(x, state, mask=mask, positions=positions)
            assert nothing is None
        assert state["steps"] == 3
        assert positions.shape == (length,)
        return x + state["sum"] * scale


@BOTH_WAYS
def test_masks_positions_containers_and_nothing(checkpoint):
    def loss(model: nn.Module, step: int) -> Tensor:
        return model(torch.randn(5, 7, WIDTH)).square().mean()

    assert_same_training(Arguments(), loss, micro_batch_size=2, checkpoint=checkpoint, tolerance=1e-5)


def test_units_whose_inputs_need_no_gradient():
    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = nn.ModuleList(nn.Linear(5, 3) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([branch(x) for branch in self.branches]).square().mean()

    def loss(model: nn.Module, step: int) -> Tensor:
        return model(torch.randn(ROWS, 5))

    assert_same_training(Tower(), loss, micro_batch_size=3, blocks=["branches.*"])


class Fails(Block):
    """Fails in one slice, in forward or in backward, when told to."""

    when = ""
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.calls += 1
        if self.when == "forward" and self.calls == 3:
            raise KeyError("user's own")
        if self.when == "backward" and y.requires_grad and self.calls == 2:
            y.register_hook(self._fail)
        return y

    def _fail(self, gradient: Tensor) -> None:
        raise KeyError("user's own")


@BOTH_WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_an_exception_in_a_slice_rolls_the_attempt_back(checkpoint, when, dtype):
    model = Tiny(depth=3)
    model.h[1] = Fails()
    peer = copy.deepcopy(model)
    sessions = FakeSession(), FakeSession()
    for each, session in zip((model, peer), sessions, strict=True):
        parallelize(each, session, blocks=[Block], micro_batch_size=1, checkpoint=checkpoint, dtype=dtype)
    optimizer, peer_optimizer = AdamW(model), AdamW(peer)
    model.h[1].when = when
    model.h[1].calls = 0
    with pytest.raises(KeyError, match="user's own"):
        loss_of(model, 0).backward()
    model.h[1].when = ""
    assert train(model, optimizer, range(3)) == train(peer, peer_optimizer, range(3))
    assert_same_state(full_state_dict(model), full_state_dict(peer), 0.0)
    assert (sessions[0].rolled_back, sessions[0].step) == (1, 3)
    assert sessions[0].endpoint.held == set()


def test_batches_of_any_size_in_turn():
    model, session = Tiny(), FakeSession()
    peer = copy.deepcopy(model)
    parallelize(model, session, micro_batch_size=2)
    optimizer, peer_optimizer = AdamW(model, lr=1e-2), torch.optim.AdamW(peer.parameters(), lr=1e-2)
    for step, rows in enumerate((5, 1, 2, 8)):
        for each, its in ((model, optimizer), (peer, peer_optimizer)):
            each(tokens(step, batch=rows)).square().mean().backward()
            its.step()
            its.zero_grad()
    assert_same_state(full_state_dict(model), peer.state_dict(), 1e-5)


def make(unit: nn.Module, *, size: int = 1, rows: int = 3, depth: int = 2, **options) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(copy.deepcopy(unit) for _ in range(depth)))
    parallelize(model, FakeSession(), blocks=[type(unit)], micro_batch_size=size, **options)
    AdamW(model)
    return model


def test_modules_that_mix_rows_are_refused_while_they_do():
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x)

    model, data = make(Normed()), torch.randn(3, WIDTH)
    with pytest.raises(ConfigError, match=r"block 1: norm is a BatchNorm1d.*GroupNorm"):
        model(data)
    model.eval()  # rows are independent then
    assert model(data).shape == (3, WIDTH)


def test_outputs_that_mix_rows_are_refused():
    class Means(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mean()

    model = make(Means(WIDTH, WIDTH), depth=1)
    with pytest.raises(ConfigError, match=r"block 1: expected outputs with one row for each of the 1.*shape \[\]"):
        model(torch.randn(3, WIDTH))


class Inner(nn.Linear):
    def forward(self, x: Tensor, extra: object = None) -> Tensor:
        return super().forward(x)


class PassesOn(nn.Module):
    """Gives its inner layer one more argument, as a test says."""

    extra: object = None

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, extra=self.extra)


def test_arguments_that_may_or_may_not_have_rows_are_refused():
    model = PassesOn()
    parallelize(model, FakeSession(), blocks=["inner"], micro_batch_size=1)
    AdamW(model)
    model.extra = torch.ones(3)
    with pytest.raises(ConfigError, match=r"argument \['extra'\] of shape \[3\] may have the batch first"):
        model(torch.randn(3, 3, WIDTH))
    assert model(torch.randn(3, 5, WIDTH)).shape == (3, 5, WIDTH)
    model.extra = object()
    with pytest.raises(ConfigError, match=r"argument \['extra'\] is a object.*use_cache=False"):
        model(torch.randn(3, 5, WIDTH))
    with torch.no_grad():
        assert model(torch.randn(3, 5, WIDTH)).shape == (3, 5, WIDTH)


def test_a_unit_without_the_batch_first_is_refused():
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.transpose(0, 1))

    model = Turned()
    parallelize(model, FakeSession(), blocks=["inner"], micro_batch_size=1)
    AdamW(model)
    with pytest.raises(ConfigError, match=r"block inner: .* the 3 rows .* found shapes \[5, 3, 12\]; put the batch"):
        model(torch.randn(3, 5, WIDTH))
    layers = nn.Sequential(*(nn.TransformerEncoderLayer(WIDTH, 2) for _ in range(2)))
    with pytest.raises(ConfigError, match="TransformerEncoderLayer was made with batch_first=False"):
        parallelize(layers, FakeSession(), blocks=[nn.TransformerEncoderLayer], micro_batch_size=1)


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_below_one_is_refused(size):
    with pytest.raises(ConfigError, match="micro_batch_size: expected at least 1"):
        parallelize(Tiny(), FakeSession(), micro_batch_size=size)


def test_workers_with_different_batches_and_micro_batches(tmp_path):
    """Two workers over a real server learn as one process does that sees all rows."""
    model = Tiny()
    peer = copy.deepcopy(model)
    shares = [slice(0, 5), slice(5, 7)]
    batches = [tokens(step, batch=7) for step in range(3)]
    states: dict[int, dict[str, Tensor]] = {}

    def work(session: Session) -> None:
        mine = copy.deepcopy(model)
        parallelize(mine, session, micro_batch_size=[2, 3][session.rank])
        optimizer = AdamW(mine, lr=1e-2)
        for batch in batches:
            rows = batch[shares[session.rank]]
            (mine(rows).square().mean() * (2 * len(rows) / 7)).backward()
            optimizer.step()
        states[session.rank] = full_state_dict(mine)

    run_workers(tmp_path, work)
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-2)
    for batch in batches:
        peer(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same_state(states[0], states[1], 0.0)
    assert_same_state(states[0], peer.state_dict(), 1e-5)
