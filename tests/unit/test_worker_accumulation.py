"""Several backward passes in one step: announced by no_sync, summed in the worker, pushed once."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from accelerate import Accelerator
from tests.unit.fake_session import FakeSession, StoredBlock
from tests.unit.worker_models import assert_same_state, plain_adamw, run_workers
from torch import Tensor, nn

import luwu
from harness.small_models import Block, Tiny, tokens
from luwu.errors import ConfigError, MemoryBudgetError, StepOrderError
from luwu.optim.adamw import AdamW
from luwu.session.session import Session
from luwu.worker import host_memory
from luwu.worker.parallelize import full_state_dict, parallelize

BOTH_WAYS = pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "references"])
PASSES = 3


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def loss_of(model: nn.Module, index: int) -> Tensor:
    text = tokens(index, batch=2)
    return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten()) / PASSES


class Trained:
    """A model over a fake session, and a plain peer with the same first values."""

    def __init__(self, model: nn.Module | None = None, **options) -> None:
        self.model = model or Tiny()
        self.peer = copy.deepcopy(self.model)
        self.session = FakeSession()
        parallelize(self.model, self.session, **options)
        self.optimizer = AdamW(self.model, lr=1e-2)
        self.peer_optimizer = plain_adamw(self.peer, lr=1e-2)

    def step(self, first: int, *, announce_last: bool = False) -> None:
        """Make a step of both, of several passes."""
        for index in range(PASSES):
            last = index == PASSES - 1
            with luwu.no_sync(self.model) if announce_last or not last else nullcontext():
                loss_of(self.model, first + index).backward()
            loss_of(self.peer, first + index).backward()
        for optimizer in (self.optimizer, self.peer_optimizer):
            optimizer.step()
            optimizer.zero_grad()

    def assert_same(self, tolerance: float = 1e-5) -> None:
        assert_same_state(full_state_dict(self.model), self.peer.state_dict(), tolerance)
        assert self.session.endpoint.held == set()


@pytest.mark.counts_pulls
@BOTH_WAYS
@pytest.mark.parametrize("announce_last", [False, True], ids=["pushed in backward", "pushed in step"])
@pytest.mark.parametrize("micro_batch_size", [None, 1])
def test_several_backward_passes_make_one_step(checkpoint, announce_last, micro_batch_size):
    trained = Trained(checkpoint=checkpoint, micro_batch_size=micro_batch_size)
    for step in range(3):
        trained.step(10 * step, announce_last=announce_last)
    log = trained.session.endpoint.log
    assert (trained.session.step, trained.session.attempts) == (3, 3)
    assert [log.count((what, 1)) for what in ("pull", "push")] == [2 * PASSES * 3, 3]
    assert log.count(("begin", -1)) == 3
    trained.assert_same()


def test_two_workers_over_a_real_server(tmp_path):
    """Each runs two passes a step; together they learn as one that sees all four batches."""
    model = Tiny()
    peer = copy.deepcopy(model)
    states: dict[int, dict[str, Tensor]] = {}

    def work(session: Session) -> None:
        mine = copy.deepcopy(model)
        parallelize(mine, session)
        optimizer = AdamW(mine, lr=1e-2)
        for step in range(3):
            with luwu.no_sync(mine):
                loss_of(mine, 4 * step + session.rank).backward()
            loss_of(mine, 4 * step + 2 + session.rank).backward()
            optimizer.step()
        states[session.rank] = full_state_dict(mine)

    run_workers(tmp_path, work)
    optimizer = plain_adamw(peer, lr=1e-2)
    for step in range(3):
        for index in range(4):
            (loss_of(peer, 4 * step + index) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same_state(states[0], states[1], 0.0)
    assert_same_state(states[0], peer.state_dict(), 1e-5)


def test_frozen_tied_and_unused_parameters():
    model = Tiny(tied=True)
    model.h[0].requires_grad_(False)
    trained = Trained(model)
    trained.step(0)
    trained.assert_same()


def test_bfloat16_passes_are_summed_in_float32_in_their_order(monkeypatch):
    found: dict[str, Tensor] = {}
    monkeypatch.setattr(
        StoredBlock, "update", lambda block, gradient, groups: found.update({block.manifest.name: gradient.clone()})
    )
    trained = Trained(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 1)), blocks=["1"], dtype=torch.bfloat16)
    peer = trained.peer.bfloat16()
    data = torch.randn(40, 2, 6).bfloat16()
    with luwu.no_sync(trained.model):
        for batch in data:
            trained.model(batch).sum().backward()
    trained.optimizer.step()
    total, rounded = torch.zeros(5), torch.zeros(5, dtype=torch.bfloat16)
    for batch in data:
        (part,) = torch.autograd.grad(peer(batch).sum(), peer[1].weight)
        total += part[0].float()
        rounded += part[0]
    assert torch.equal(found["1"][:5], total.bfloat16())
    assert not torch.equal(found["1"][:5], rounded)


def test_evaluation_between_passes_sees_the_last_step():
    trained = Trained()
    with torch.no_grad():
        before = trained.model(tokens(0))
    with luwu.no_sync(trained.model):
        loss_of(trained.model, 0).backward()
        with torch.no_grad():
            assert torch.equal(trained.model(tokens(0)), before)
        assert_same_state(full_state_dict(trained.model), trained.peer.state_dict(), 0.0)
    trained.optimizer.zero_grad()
    trained.step(0)
    trained.assert_same()


def test_zero_grad_drops_all_passes():
    trained = Trained()
    with luwu.no_sync(trained.model):
        loss_of(trained.model, 7).backward()
        loss_of(trained.model, 8).backward()
    trained.optimizer.zero_grad()
    assert (trained.session.attempts, trained.session.rolled_back) == (1, 1)
    with luwu.no_sync(trained.model):
        loss_of(trained.model, 7).backward()
    loss = loss_of(trained.model, 0)
    trained.optimizer.zero_grad()  # as some write it: between forward and backward
    loss.backward()
    trained.optimizer.step()
    loss_of(trained.peer, 0).backward()
    trained.peer_optimizer.step()
    trained.assert_same()


class Fails(Block):
    fail = False

    def forward(self, x: Tensor) -> Tensor:
        if self.fail:
            raise KeyError("user's own")
        return super().forward(x)


def test_a_pass_that_fails_takes_the_others_along_but_not_in_silence():
    model = Tiny()
    model.h[1] = Fails()
    trained = Trained(model, blocks=[Block])
    with luwu.no_sync(model):
        loss_of(model, 0).backward()
        model.h[1].fail = True
        with pytest.raises(KeyError):
            loss_of(model, 1)
        model.h[1].fail = False
        with pytest.raises(StepOrderError, match=r"given up.*optim\.zero_grad\(\)"):
            loss_of(model, 1)
    trained.optimizer.zero_grad()
    trained.session.endpoint.log.clear()
    loss_of(model, 2).backward()
    trained.optimizer.step()
    loss_of(trained.peer, 2).backward()
    trained.peer_optimizer.step()
    trained.assert_same()


def test_a_second_backward_says_how_to_announce_it():
    trained = Trained()
    first = loss_of(trained.model, 0)
    first.backward(retain_graph=True)
    with pytest.raises(StepOrderError, match=r"with luwu\.no_sync\(model\)"):
        first.backward()
    with pytest.raises(StepOrderError, match=r"with luwu\.no_sync\(model\)"):
        loss_of(trained.model, 1)
    trained.optimizer.zero_grad()
    with luwu.no_sync(trained.model):
        again = loss_of(trained.model, 0)
        again.backward(retain_graph=True)
        with pytest.raises(StepOrderError, match="a second backward of one forward"):
            again.backward()


def test_hyper_parameters_stay_over_all_passes():
    trained = Trained()
    with luwu.no_sync(trained.model):
        loss_of(trained.model, 0).backward()
    trained.optimizer.param_groups[0]["lr"] = 1.0
    loss_of(trained.model, 1).backward()
    with pytest.raises(StepOrderError, match="hyper-parameters changed"):
        trained.optimizer.step()


@pytest.mark.host_only
def test_an_interrupted_push_in_step_rolls_back(monkeypatch):
    trained = Trained()
    with luwu.no_sync(trained.model):
        loss_of(trained.model, 0).backward()
    endpoint, push = trained.session.endpoint, trained.session.endpoint.push

    def interrupt(block: int, offset: int) -> int:
        endpoint.push = push
        push(block, offset)
        raise KeyboardInterrupt

    endpoint.push = interrupt
    with pytest.raises(KeyboardInterrupt):
        trained.optimizer.step()
    assert (trained.session.attempts, trained.session.rolled_back) == (1, 1)
    trained.step(0)
    trained.assert_same()


def test_too_little_memory_is_said_before_anything_is_kept(monkeypatch):
    trained = Trained()
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 1000)
    with pytest.raises(MemoryBudgetError, match=r"4 for each trainable.*found 1000.*micro_batch_size"):
        with luwu.no_sync(trained.model):
            pass
    with pytest.raises(ConfigError, match="parallelized"):
        with luwu.no_sync(trained.peer):
            pass


def test_free_memory_is_known():
    assert 1 << 20 < host_memory.available_bytes() < 1 << 60


def test_accelerate_finds_no_sync_where_it_looks(monkeypatch):
    """Accelerate announces with more than one process; with one it does not, and a no_sync around all of it does."""
    trained = Trained()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PASSES)
    model, optimizer = trained.model, accelerator.prepare_optimizer(trained.optimizer)
    for processes in (1, 2):
        monkeypatch.setattr(type(accelerator), "use_distributed", processes > 1)
        with luwu.no_sync(model) if processes == 1 else nullcontext():
            for index in range(2 * PASSES):
                with accelerator.accumulate(model):
                    accelerator.backward(PASSES * loss_of(model, index))
                    optimizer.step()
                    optimizer.zero_grad()
    assert (trained.session.step, trained.session.attempts) == (4, 4)
    for _ in range(2):
        for step in range(2):
            for index in range(PASSES):
                loss_of(trained.peer, PASSES * step + index).backward()
            trained.peer_optimizer.step()
            trained.peer_optimizer.zero_grad()
    trained.assert_same()
