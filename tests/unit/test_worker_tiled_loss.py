"""The tiled loss and its gradients are torch's cross entropy, and there is never more than a tile of logits."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.largest_tensor import LargestTensor
from tests.unit.worker_models import assert_same_state, plain_adamw, train
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from harness.small_models import Tiny, tokens
from luwu import tiled_cross_entropy
from luwu.errors import ConfigError
from luwu.models.gpt import GPT, GPTConfig
from luwu.optim.adamw import AdamW
from luwu.worker.parallelize import full_state_dict, parallelize

CLASSES, HIDDEN = 11, 5


def head(rows: tuple[int, ...] = (4, 3), dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = (*rows, HIDDEN), (CLASSES, HIDDEN), (CLASSES,)
    hidden, weight, bias = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes)
    targets = torch.randint(CLASSES, rows, generator=generator)
    targets[0, 1] = targets[2, 0] = -100
    return hidden, weight, bias, targets


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tile_rows", [1, 5, 12, None])
def test_loss_and_gradients_are_those_of_torch(tile_rows, smoothing, reduction):
    hidden, weight, bias, targets = head()
    expected = cross_entropy(
        linear(hidden, weight, bias).flatten(0, 1), targets.flatten(), label_smoothing=smoothing, reduction=reduction
    )
    found = tiled_cross_entropy(
        hidden, weight, targets, bias, tile_rows=tile_rows, label_smoothing=smoothing, reduction=reduction
    )
    torch.testing.assert_close(found, expected)
    inputs = hidden, weight, bias
    gradients = torch.autograd.grad(3 * found, inputs), torch.autograd.grad(3 * expected, inputs)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
def test_gradients_by_finite_differences(wanted):
    hidden, weight, bias, targets = head()
    inputs = tuple(tensor.requires_grad_(want) for tensor, want in zip((hidden, weight, bias), wanted, strict=True))

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return tiled_cross_entropy(hidden, weight, targets, bias, tile_rows=5, label_smoothing=0.2)

    if any(wanted):
        assert torch.autograd.gradcheck(loss, inputs)
    else:
        assert not loss(*inputs).requires_grad


def capped(logits: Tensor) -> Tensor:
    return 3.0 * torch.tanh(logits / 3.0)


@pytest.mark.parametrize("tile_rows", [1, 5, None])
def test_of_transformed_logits(tile_rows):
    hidden, weight, bias, targets = head()
    expected = cross_entropy(capped(linear(hidden, weight, bias)).flatten(0, 1), targets.flatten())
    found = tiled_cross_entropy(hidden, weight, targets, bias, tile_rows=tile_rows, transform=capped)
    torch.testing.assert_close(found, expected)
    inputs = hidden, weight, bias
    for ours, theirs in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        again = tiled_cross_entropy(hidden, weight, targets, bias, tile_rows=tile_rows, transform=capped)
    assert torch.equal(again, found.detach())


def test_without_bias_and_with_another_ignored_class():
    hidden, weight, _, targets = head()
    targets[targets < 0] = 3
    expected = cross_entropy(linear(hidden, weight).flatten(0, 1), targets.flatten(), ignore_index=3)
    torch.testing.assert_close(tiled_cross_entropy(hidden, weight, targets, ignore_index=3, tile_rows=2), expected)


def test_nothing_that_counts_is_nan_without_gradient_as_in_torch():
    hidden, weight, _, targets = head()
    loss = tiled_cross_entropy(hidden, weight, torch.full_like(targets, -100))
    loss.backward()
    assert torch.isnan(loss)
    assert not hidden.grad.any() and not weight.grad.any()


def test_bfloat16_sums_over_tiles_in_float32():
    hidden, weight, bias, targets = head((200, 5), torch.bfloat16)
    inputs = hidden, weight, bias
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = cross_entropy(linear(*exact).flatten(0, 1), targets.flatten())
    found = tiled_cross_entropy(hidden, weight, targets, bias, tile_rows=1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, check_dtype=False, rtol=1e-3, atol=0.0)
    for ours, theirs in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, exact), strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours - theirs).norm() < 5e-3 * theirs.norm()


def test_no_more_than_a_tile_of_logits_exists():
    hidden, weight = torch.randn(64, 4, requires_grad=True), torch.randn(100, 4, requires_grad=True)
    targets = torch.randint(100, (64,))
    with LargestTensor() as largest:
        tiled_cross_entropy(hidden, weight, targets, tile_rows=8).backward()
    assert largest.elements == 8 * 100
    model = GPT(GPTConfig(layers=1, hidden=8, heads=2, seq=16))
    ids = torch.randint(256, (64, 16))
    assert model(ids, ids).logits is None
    assert model(ids).logits.shape == (64, 16, 256)


class TinyLoss(Tiny):
    """Computes its loss in its root, over a head that may be the embedding table."""

    def forward(self, text: Tensor) -> Tensor:
        x = self.embed(text[:, :-1])
        for block in self.h:
            x = block(x)
        return tiled_cross_entropy(self.norm(x), self.head.weight, text[:, 1:], tile_rows=5)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("frozen", [False, True], ids=["trained head", "frozen head"])
def test_with_parameters_in_the_root(tied, frozen):
    torch.manual_seed(0)
    model = TinyLoss(tied=tied)
    model.head.requires_grad_(not frozen)
    peer, session = copy.deepcopy(model), FakeSession()
    parallelize(model, session, micro_batch_size=3)
    losses = train(model, AdamW(model, lr=1e-2), range(4), lambda model, step: model(tokens(step)))
    peers = train(peer, plain_adamw(peer, lr=1e-2), range(4), whole_logits_loss)
    assert losses == pytest.approx(peers, rel=1e-5)
    assert_same_state(full_state_dict(model), peer.state_dict(), 1e-5)
    assert session.endpoint.log.count(("push", 0)) == 4


def whole_logits_loss(model: nn.Module, step: int) -> Tensor:
    text = tokens(step)
    return cross_entropy(Tiny.forward(model, text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(CLASSES, HIDDEN + 1)}, r"weight: expected \[classes, width\].*found \[11, 6\]"),
        ({"targets": torch.zeros(4, 2, dtype=torch.int64)}, r"targets: expected int64 of shape \[4, 3\]"),
        ({"targets": torch.zeros(4, 3)}, r"targets: expected int64.*found torch\.float32"),
        ({"targets": torch.full((4, 3), CLASSES)}, r"targets: expected classes from 0 to 10.*found 11"),
        ({"hidden": torch.zeros(4, 3, HIDDEN, dtype=torch.bfloat16)}, "hidden: expected the floating-point dtype"),
        ({"bias": torch.zeros(3)}, r"bias: expected shape \[11\]"),
        ({"tile_rows": -1}, "tile_rows: expected at least 1"),
        ({"label_smoothing": 1.5}, "label_smoothing: expected 0 to 1"),
        ({"reduction": "none"}, "reduction: expected 'mean' or 'sum'"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    hidden, weight, bias, targets = head(dtype=torch.float32)
    arguments = {"hidden": hidden, "weight": weight, "bias": bias, "targets": targets} | change
    with pytest.raises(ConfigError, match=message):
        tiled_cross_entropy(**arguments)
