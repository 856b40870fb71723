"""Dynamic loss scaling: the losses, scales and skipped steps of torch.amp.GradScaler over float32 masters."""

import copy
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from tests.unit.fake_session import FakeSession, FakeStore
from torch import Tensor, nn

import luwu
from harness.small_models import Tiny, loss_of, tokens
from luwu.core.protocols import COMMITTED, NOT_FINITE
from luwu.errors import ConfigError, NonFiniteError, StepOrderError
from luwu.optim.adamw import AdamW
from luwu.worker.loss_scale import LossScaler, LossScaling, forward_scale, scaled_forward
from luwu.worker.parallelize import parallelize
from luwu.worker.tiled_loss import tiled_cross_entropy

LossFunction = Callable[[nn.Module, int], Tensor]
Step = tuple[float, float, bool, float | None]
"""Loss, the scale of its backward, whether the step was taken, and the gradient's norm."""


def torch_steps(
    model: nn.Module, loss: LossFunction, steps: int, settings: LossScaling, limit: float | None = None
) -> list[Step]:
    """Train by plain torch: a float16 model, float32 masters, GradScaler between them."""
    masters = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    model = copy.deepcopy(model).half()
    optimizer = torch.optim.AdamW(masters, lr=1e-2, foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=settings.initial, growth_interval=settings.growth_interval)
    found: list[Step] = []
    for step in range(steps):
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.data.copy_(master.data)
            parameter.grad = None
        scale = scaler.get_scale()
        value = loss(model, step)
        scaler.scale(value).backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()
        scaler.unscale_(optimizer)
        norm = None
        if limit is not None:
            norm = float(torch.nn.utils.clip_grad_norm_(masters, limit))
        before = [master.detach().clone() for master in masters]
        scaler.step(optimizer)
        scaler.update()
        taken = any(not torch.equal(old, new) for old, new in zip(before, masters, strict=True))
        found.append((value.item(), scale, taken, norm if taken else None))
    return found


def our_steps(model: nn.Module, optimizer: AdamW, loss: LossFunction, steps: range) -> list[Step]:
    found: list[Step] = []
    for step in steps:
        scale = optimizer.loss_scale
        value = loss(model, step)
        optimizer.scale(value).backward()
        optimizer.step()
        taken = optimizer.last_step_committed
        found.append((value.item(), scale, taken, optimizer.last_grad_norm if taken else None))
    return found


def sometimes_too_large(model: nn.Module, step: int) -> Tensor:
    """Overflows where no scale was to blame for the steps before, and where the scale is one step too large."""
    return loss_of(model, step) * (2.0**14 if step in (3, 4, 9) else 1.0)


EXACT = 1e-5
ROUNDING = 2.0**-10
"""torch adds a norm up in float32, LuWu in float64. A factor that differs in its last bit can round a weight to the
next float16, which is 2^-11 apart."""


def close(found: list[Step], expected: list[Step], tolerance: float = EXACT) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[0] == pytest.approx(theirs[0], rel=tolerance)
        assert ours[1:3] == theirs[1:3]
        assert ours[3] == (None if theirs[3] is None else pytest.approx(theirs[3], rel=tolerance))


@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "references"])
@pytest.mark.parametrize("limit", [None, 0.5], ids=["unclipped", "clipped"])
def test_losses_scales_and_skipped_steps_are_those_of_gradscaler(checkpoint, limit):
    torch.manual_seed(0)
    model = Tiny()
    settings = LossScaling(growth_interval=3)
    expected = torch_steps(model, sometimes_too_large, 14, settings, limit)
    scales = [scale for _, scale, _, _ in expected]
    skipped = [index for index, step in enumerate(expected) if not step[2]]
    assert skipped and min(scales) < 2.0**16 and any(after > before for before, after in pairwise(scales))
    session = FakeSession()
    parallelize(model, session, dtype=torch.float16, loss_scaling=settings, checkpoint=checkpoint)
    optimizer = AdamW(model, lr=1e-2, max_grad_norm=limit)
    found = our_steps(model, optimizer, sometimes_too_large, range(14))
    close(found, expected, EXACT if limit is None else ROUNDING)
    assert (session.attempts, session.rolled_back) == (14, len(skipped))


def test_without_overflow_the_scale_grows_and_nothing_is_skipped():
    torch.manual_seed(0)
    model = Tiny()
    settings = LossScaling(initial=8.0, growth_interval=2)
    expected = torch_steps(model, loss_of, 5, settings)
    parallelize(model, FakeSession(), dtype=torch.float16, loss_scaling=settings)
    found = our_steps(model, AdamW(model, lr=1e-2), loss_of, range(5))
    close(found, expected)
    assert [scale for _, scale, _, _ in found] == [8.0, 8.0, 16.0, 16.0, 32.0]


def test_a_resume_goes_on_with_the_scale_and_its_count():
    settings = LossScaling(growth_interval=3)

    def start(store: FakeStore) -> tuple[nn.Module, AdamW]:
        torch.manual_seed(0)
        model = parallelize(Tiny(), FakeSession(store), dtype=torch.float16, loss_scaling=settings)
        return model, AdamW(model, lr=1e-2)

    undisturbed = our_steps(*start(FakeStore()), sometimes_too_large, range(14))
    # After a step that was rolled back the store has what the commit before had, and the next start makes it again.
    for stop in [attempt + 1 for attempt, step in enumerate(undisturbed[:-1]) if step[2]]:
        store = FakeStore()
        our_steps(*start(store), sometimes_too_large, range(stop))
        assert store.loss_scale is not None
        again, optimizer = start(store)
        # The fake's optimizer states live in the store, so all is as it was.
        assert our_steps(again, optimizer, sometimes_too_large, range(stop, 14)) == undisturbed[stop:]


def half_model(**settings) -> tuple[nn.Module, AdamW, FakeSession]:
    session = FakeSession()
    model = parallelize(Tiny(), session, dtype=torch.float16, loss_scaling=LossScaling(**settings))
    return model, AdamW(model, lr=1e-2), session


def test_a_backward_without_scale_is_refused_and_the_next_one_works():
    model, optimizer, session = half_model()
    with pytest.raises(StepOrderError, match=r"expected its loss to be scaled.*optim\.scale\(loss\)\.backward\(\)"):
        loss_of(model, 0).backward()
    scaled_and_dropped = optimizer.scale(loss_of(model, 0))
    del scaled_and_dropped
    with pytest.raises(StepOrderError, match=r"optim\.scale\(loss\)\.backward\(\)"):
        loss_of(model, 0).backward()
    our_steps(model, optimizer, loss_of, range(1))
    assert session.step == 1


def test_torchs_gradscaler_is_refused_by_name():
    model, optimizer, _ = half_model()
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(StepOrderError, match="no GradScaler"):
        scaler.scale(loss_of(model, 0)).backward()
    optimizer.zero_grad()
    scaler.scale(optimizer.scale(loss_of(model, 0))).backward()
    with pytest.raises(ConfigError, match=r"GradScaler: expected none.*optim\.scale"):
        scaler.step(optimizer)


def test_scaling_changes_no_value_and_nothing_where_it_is_not_needed():
    model, optimizer, _ = half_model()
    loss = loss_of(model, 0)
    scaled = optimizer.scale(loss)
    assert scaled.item() == loss.item()
    assert scaled is not loss
    optimizer.zero_grad()
    with torch.no_grad():
        loss = loss_of(model, 0)
        assert optimizer.scale(loss) is loss
    plain = parallelize(Tiny(), FakeSession(), dtype=torch.bfloat16)
    optimizer = AdamW(plain)
    loss = loss_of(plain, 0)
    assert optimizer.scale(loss) is loss
    assert optimizer.loss_scale == 1.0


def test_a_step_that_is_given_up_says_nothing_about_the_scale():
    model, optimizer, session = half_model(growth_interval=2)
    our_steps(model, optimizer, loss_of, range(1))
    optimizer.scale(loss_of(model, 1) * float("inf")).backward()
    optimizer.zero_grad()
    assert (optimizer.loss_scale, session.rolled_back) == (2.0**16, 1)
    our_steps(model, optimizer, loss_of, range(1, 2))
    assert optimizer.loss_scale == 2.0**17


def test_only_overflows_at_a_scale_of_one_count_as_gradients_that_are_not_finite():
    session = FakeSession()
    model = parallelize(Tiny(), session, dtype=torch.float16, loss_scaling=LossScaling(initial=4.0))
    optimizer = AdamW(model, max_skipped=2)
    bad = lambda model, step: loss_of(model, step) * float("nan")  # noqa: E731
    our_steps(model, optimizer, bad, range(3))
    with pytest.raises(NonFiniteError, match="2 steps in a row"):
        our_steps(model, optimizer, bad, range(1))
    assert session.rolled_back == 4


def test_several_backward_passes_in_a_step_have_one_scale():
    model, optimizer, session = half_model(initial=1024.0)
    with luwu.no_sync(model):
        optimizer.scale(loss_of(model, 0) / 2).backward()
    with pytest.raises(StepOrderError, match=r"optim\.scale"):
        (loss_of(model, 1) / 2).backward()
    optimizer.zero_grad()
    with luwu.no_sync(model):
        optimizer.scale(loss_of(model, 0) / 2).backward()
    optimizer.scale(loss_of(model, 1) / 2).backward()
    optimizer.step()
    assert session.step == 1


def test_the_scale_follows_torchs_rule_for_any_ends():
    generator = random.Random(5)
    for _ in range(30):
        interval = generator.randint(1, 5)
        scale, tracker = torch.full((), 2.0**10), torch.zeros((), dtype=torch.int32)
        scaler = LossScaler(LossScaling(2.0**10, interval), None)
        recorded = None
        for _ in range(40):
            end = generator.choice([COMMITTED, COMMITTED, NOT_FINITE, 0])
            recorded = scaler.state if end == COMMITTED else recorded
            scaler.count(end)
            if end != 0:
                torch._amp_update_scale_(scale, tracker, torch.full((), float(end == NOT_FINITE)), 2.0, 0.5, interval)
            assert scaler.state == (scale.item(), int(tracker))
            if end == COMMITTED:
                assert LossScaler(LossScaling(2.0**10, interval), recorded).state == scaler.state


@pytest.mark.parametrize(
    "settings", [{"initial": 0.0}, {"initial": 3.0}, {"initial": 2.0**200}, {"growth_interval": 0}]
)
def test_settings_that_cannot_work(settings):
    with pytest.raises(ConfigError, match="loss_scaling: "):
        LossScaling(**settings)


def test_a_tiled_loss_keeps_what_the_scale_saves():
    """Its gradients are made in forward: unscaled, these would all be zero in float16."""
    torch.manual_seed(0)
    rows, width, classes = 4096, 8, 64
    hidden = (torch.randn(rows, width) * 0.01).half().requires_grad_()
    weight = (torch.randn(classes, width) * 0.02).half().requires_grad_()
    targets = torch.randint(classes, (rows,))
    exact = [tensor.detach().float().requires_grad_() for tensor in (hidden, weight)]
    nn.functional.cross_entropy(nn.functional.linear(*exact), targets).backward()
    scale = 2.0**14
    with scaled_forward(scale):
        loss = tiled_cross_entropy(hidden, weight, targets, tile_rows=512)
    (loss * scale).backward()
    for found, expected in zip((hidden, weight), exact, strict=True):
        assert expected.grad.abs().max() > 0
        torch.testing.assert_close(found.grad.float() / scale, expected.grad, rtol=2e-2, atol=1e-8)


class TellsScale(Tiny):
    """Notes the scale that who computes gradients in forward is told."""

    def forward(self, tokens: Tensor) -> Tensor:
        self.told = forward_scale()
        return super().forward(tokens)


def test_a_forward_is_told_the_scale_of_its_loss():
    model = TellsScale()
    parallelize(model, FakeSession(), dtype=torch.float16, loss_scaling=LossScaling(256.0, growth_interval=1))
    optimizer = AdamW(model, lr=1e-2)
    for expected in (256.0, 512.0):
        our_steps(model, optimizer, loss_of, range(1))
        assert model.told == expected
    with torch.no_grad():
        model(tokens(0))
    assert model.told == forward_scale() == 1.0


def test_evaluation_needs_no_scale():
    model, optimizer, _ = half_model()
    our_steps(model, optimizer, loss_of, range(1))
    with torch.no_grad():
        assert model(tokens(0)).dtype is torch.float16
