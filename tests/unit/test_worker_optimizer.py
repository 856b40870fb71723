"""luwu.AdamW: torch's settings, groups, schedulers, and steps that the server rolled back."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import assert_same_state, plain_adamw, train
from torch import Tensor, nn

import luwu
from harness.small_models import Tiny, loss_of, tokens
from luwu.errors import AttemptVoidError, ConfigError, NonFiniteError, StepOrderError
from luwu.optim.adamw import AdamW
from luwu.optim.kinds import optimizer_of, torch_optimizers
from luwu.worker.parallelize import full_state_dict, parallelize


def parallel(model: nn.Module | None = None, **options) -> tuple[nn.Module, FakeSession]:
    torch.manual_seed(0)
    session = FakeSession()
    return parallelize(model or Tiny(), session, **options), session


def decay_groups(model: nn.Module) -> list[dict]:
    parameters = list(model.parameters())
    return [
        {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": 0.3},
        {"params": [parameter for parameter in parameters if parameter.dim() <= 1], "weight_decay": 0.0, "lr": 3e-3},
    ]


@pytest.mark.parametrize("kind", ["adamw", "adamw8bit", "adam", "sgd", "adagrad"])
def test_defaults_are_those_of_torch(kind):
    theirs = {"adamw8bit": torch.optim.AdamW, "sgd": torch.optim.SGD} | torch_optimizers()
    model, _ = parallel(optimizer=optimizer_of(kind))
    optimizer = optimizer_of(kind)(model)
    ours, torchs = optimizer.defaults, theirs[kind]([torch.zeros(1)]).defaults
    assert ours == {name: torchs[name] for name in ours}
    assert isinstance(optimizer, torch.optim.Optimizer)


def test_groups_with_their_own_settings():
    torch.manual_seed(0)
    model = Tiny(tied=True)
    peer = copy.deepcopy(model)
    model, _ = parallel(model)
    losses = train(model, AdamW(decay_groups(model), lr=1e-2), range(4))
    peers = train(peer, torch.optim.AdamW(decay_groups(peer), lr=1e-2, foreach=False), range(4))
    assert losses == pytest.approx(peers, rel=1e-6)
    assert_same_state(full_state_dict(model), peer.state_dict())


@pytest.mark.parametrize("limit", [0.05, 0.5, 1e6, math.inf])
def test_clipping_is_that_of_torch_with_tied_and_frozen_parameters(limit):
    torch.manual_seed(0)
    model = Tiny(tied=True)
    model.h[1].requires_grad_(False)
    peer = copy.deepcopy(model)
    model, _ = parallel(model)
    optimizer = AdamW(model, lr=1e-2, max_grad_norm=limit)
    assert optimizer.last_grad_norm is None
    peer_optimizer = plain_adamw(peer, lr=1e-2)
    for step in range(4):
        loss, peer_loss = loss_of(model, step), loss_of(peer, step)
        assert loss.item() == pytest.approx(peer_loss.item(), rel=1e-6)
        loss.backward()
        peer_loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(peer.parameters(), limit)
        optimizer.step()
        peer_optimizer.step()
        peer_optimizer.zero_grad()
        assert optimizer.last_grad_norm == pytest.approx(norm.item(), rel=1e-6)
    assert_same_state(full_state_dict(model), peer.state_dict(), 1e-5)


def test_the_norm_of_a_step_that_is_not_finite_is_not_either():
    model, _ = parallel()
    optimizer = AdamW(model, max_grad_norm=1.0)
    (loss_of(model, 0) * math.inf).backward()
    optimizer.step()
    assert not optimizer.last_step_committed
    assert not math.isfinite(optimizer.last_grad_norm)
    loss_of(model, 1).backward()
    optimizer.step()
    assert math.isfinite(optimizer.last_grad_norm)


def test_one_group_sends_no_segments():
    model, session = parallel()
    train(model, AdamW(list(model.parameters())), range(1))
    assert session.segments == {}


def test_segments_follow_the_parameters():
    model, session = parallel()
    train(model, AdamW(decay_groups(model)), range(1))
    block = session.store.blocks[1].manifest  # norm.weight, norm.bias, up.weight, up.bias, down.weight, down.bias
    starts = {parameter.name.removeprefix("h.0."): parameter.offset for parameter in block.parameters}
    assert session.segments[1] == [
        (starts["up.weight"], 1), (starts["up.bias"], 0), (starts["down.weight"], 1), (starts["down.bias"], 0),
        (block.elements, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_schedulers(tensor_lr):
    torch.manual_seed(0)
    model = Tiny()
    peer = copy.deepcopy(model)
    model, session = parallel(model)
    results = []
    for each, optimizer in (
        (model, AdamW(model, lr=torch.tensor(1e-2) if tensor_lr else 1e-2)),
        (peer, plain_adamw(peer, lr=1e-2)),
    ):
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=6)
        losses = []
        for step in range(5):
            losses += train(each, optimizer, [step])
            scheduler.step()
        results.append(losses)
    assert results[0] == pytest.approx(results[1], rel=1e-5)
    assert_same_state(full_state_dict(model), peer.state_dict(), 1e-5)
    assert session.step == 5


def test_settings_changed_between_forward_and_step_are_refused():
    model, _ = parallel()
    optimizer = AdamW(model, lr=1e-2)
    loss_of(model, 0).backward()
    optimizer.param_groups[0]["lr"] = 1e-3
    with pytest.raises(StepOrderError, match="between optim"):
        optimizer.step()
    optimizer.zero_grad()
    train(model, optimizer, range(1))


def test_closure():
    model, session = parallel()
    optimizer = AdamW(model)

    def closure() -> Tensor:
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    assert session.step == 1


def test_a_step_waits_for_the_disk_where_it_is_asked_to():
    model, session = parallel()
    optimizer = AdamW(model)
    for wait, durable in (("answer", 0), ("durable", 2)):
        loss_of(model, 0).backward()
        optimizer.step(wait=wait)
        assert session.durable_step == durable
    with pytest.raises(ConfigError, match="wait: expected answer or durable, found 'disk'"):
        optimizer.step(wait="disk")


def with_dropout(model: nn.Module) -> Tensor:
    return nn.functional.dropout(torch.ones(64), 0.5).sum() * loss_of(model, 0)


def test_a_void_attempt_is_an_error_and_the_same_batch_follows():
    model, session = parallel()
    optimizer = AdamW(model)
    session.endpoint.voids = 1
    with_dropout(model).backward()
    with pytest.raises(AttemptVoidError, match=r"a worker was lost in it: run forward, backward and optim.step\(\)"):
        optimizer.step()
    assert (session.step, session.attempts, session.rolled_back) == (0, 0, 0)
    with_dropout(model).backward()
    optimizer.step()
    assert (session.step, session.attempts, session.rolled_back) == (1, 1, 0)


@pytest.mark.parametrize("kept", [False, True])
def test_a_closure_makes_void_attempts_again_with_the_same_random_numbers(kept):
    """With ``kept``, gradients of two backward passes are pushed at the end."""

    def train_once(voids: int) -> tuple[list[float], dict[str, Tensor]]:
        model, session = parallel()
        optimizer = AdamW(model, lr=1e-2)
        losses: list[float] = []

        def closure() -> float:
            with luwu.no_sync(model) if kept else nullcontext():
                loss = with_dropout(model)
                loss.backward()
            if kept:
                with_dropout(model).backward()
            losses.append(loss.item())
            return losses[-1]

        for _ in range(3):
            session.endpoint.voids = voids
            assert optimizer.step(closure) == losses[-1]
        assert session.attempts == session.step == 3
        return losses, full_state_dict(model)

    losses, state = train_once(0)
    again, same_state = train_once(2)
    assert again == [loss for loss in losses for _ in range(3)]
    assert all(torch.equal(state[name], same_state[name]) for name in state)


def poisoned_loss(model: nn.Module, step: int) -> Tensor:
    return loss_of(model, step) * (float("nan") if step in (2, 3) else 1.0)


def test_steps_with_non_finite_gradients_are_rolled_back():
    torch.manual_seed(0)
    model = Tiny()
    peer = copy.deepcopy(model)
    model, session = parallel(model)
    optimizer, committed = AdamW(model, lr=1e-2), []
    for step in range(6):
        train(model, optimizer, [step], poisoned_loss)
        committed.append(optimizer.last_step_committed)
    assert committed == [True, True, False, False, True, True]
    assert (session.step, session.attempts, session.rolled_back) == (4, 6, 2)
    train(peer, plain_adamw(peer, lr=1e-2), [0, 1, 4, 5])
    assert_same_state(full_state_dict(model), peer.state_dict())


def test_too_many_rolled_back_steps_in_a_row():
    model, _ = parallel()
    optimizer = AdamW(model, max_skipped=3)
    bad = lambda model, step: loss_of(model, step) * float("inf")  # noqa: E731
    train(model, optimizer, range(2), bad)
    train(model, optimizer, range(1))  # starts the count anew
    train(model, optimizer, range(2), bad)
    with pytest.raises(NonFiniteError, match=r"3 steps in a row.*at the last good step: lower the learning rate"):
        train(model, optimizer, range(1), bad)
    train(model, optimizer, range(1))


def test_where_no_step_was_good_a_lower_rate_is_not_the_first_advice():
    model, _ = parallel()
    with pytest.raises(NonFiniteError, match=r"no step since this start was good.*go back to a snapshot.*start anew"):
        train(model, AdamW(model, max_skipped=2), range(2), lambda model, step: loss_of(model, step) * float("inf"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_grad_norm": 0.0}, "max_grad_norm: expected a number above 0"),
        ({"max_grad_norm": math.nan}, "max_grad_norm: expected a number above 0"),
        ({"lr": -1.0}, "lr of parameter group 0"),
        ({"lr": float("nan")}, "lr of parameter group 0"),
        ({"eps": -1e-8}, "eps of"),
        ({"weight_decay": -0.1}, "weight_decay of"),
        ({"betas": (0.9, 1.0)}, r"betas\[1\]"),
        ({"max_skipped": 0}, "max_skipped"),
    ],
)
def test_settings_that_cannot_work(settings, message):
    model, _ = parallel()
    with pytest.raises(ConfigError, match=message):
        AdamW(model, **settings)


def test_parameters_that_cannot_be_optimized():
    model, _ = parallel()
    other, _ = parallel()
    with pytest.raises(ConfigError, match=r"embed\.weight.*found it in none"):
        AdamW(model.h.parameters())
    with pytest.raises(ConfigError, match="found 2 models"):
        AdamW([*model.parameters(), *other.parameters()])
    with pytest.raises(ConfigError, match=r"after luwu\.parallelize"):
        AdamW(Tiny().parameters())
    with pytest.raises(ConfigError, match="expected a parallelized one, found Tiny"):
        AdamW(Tiny())
    frozen, _ = parallel(Tiny().requires_grad_(False))
    with pytest.raises(ConfigError, match="expected trainable parameters, found none"):
        AdamW(frozen)


def test_groups_and_optimizer_stay_once_training_began():
    model, _ = parallel()
    AdamW(model)
    optimizer = AdamW(model)  # a better thought, before the first step
    with pytest.raises(ConfigError, match="add_param_group"):
        optimizer.add_param_group({"params": [torch.zeros(1)]})
    train(model, optimizer, range(1))
    with pytest.raises(ConfigError, match="second after the first step"):
        AdamW(model)


def test_state_dict_holds_settings_only():
    model, _ = parallel()
    optimizer = AdamW(model, lr=0.5)
    train(model, optimizer, range(1))
    saved = optimizer.state_dict()
    assert saved["state"] == {}
    saved["param_groups"][0]["lr"] = 0.25
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.25
    with torch.no_grad():
        model(tokens(0))
