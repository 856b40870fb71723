"""A unit's forward that runs again in backward: same gradients, only the inputs kept, errors that name the unit."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.worker_models import assert_same_training
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from harness.small_models import WIDTH, Tiny
from luwu.core.errors import ConfigError
from luwu.worker.autograd import saved_tensors_are_seen
from luwu.worker.recompute import Recompute


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)


def run(forward: Callable[..., Any], *inputs: Any, hooks: saved_tensors_hooks | None = None) -> Any:
    return Recompute("block 3", lambda inputs: forward(*inputs), lambda inputs: forward(*inputs)).run([*inputs], hooks)


def weight(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def gradients(output: Tensor, *of: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(output.sum(), of))


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert [bool(torch.equal(a, b)) for a, b in zip(found, expected, strict=True)] == [True] * len(expected)


@pytest.mark.parametrize("with_gradient", [True, False])
def test_gradients_are_those_of_the_plain_forward(with_gradient: bool) -> None:
    w = weight(8, 8)
    x = torch.randn(4, 8, requires_grad=with_gradient)

    def forward(x: Tensor) -> Tensor:
        return torch.tanh(torch.exp(x @ w) @ w)

    of = (w, x) if with_gradient else (w,)
    assert_same(gradients(run(forward, x), *of), gradients(forward(x), *of))


def test_inputs_that_are_no_tensors_and_several_outputs_pass_through() -> None:
    w, x = weight(8, 8), weight(4, 8)

    def forward(x: Tensor, power: int, names: dict[str, int], y: Tensor) -> tuple[Tensor, str]:
        return (x @ w) ** power + y * names["a"], "told"

    output, told = run(forward, x, 3, {"a": 2}, x)
    assert told == "told"
    assert_same(gradients(output, w, x), gradients(forward(x, 3, {"a": 2}, x)[0], w, x))


def test_the_recompute_draws_the_random_numbers_of_the_forward() -> None:
    w, x = weight(8, 8), weight(64, 8)

    def forward(x: Tensor) -> Tensor:
        return torch.exp(torch.dropout(x @ w, 0.5, True))

    torch.manual_seed(1)
    expected = gradients(forward(x), w, x)
    torch.manual_seed(1)
    output = run(forward, x)
    torch.manual_seed(2)
    assert_same(gradients(output, w, x), expected)


def test_random_numbers_go_on_after_a_recompute_as_if_it_had_drawn_none() -> None:
    x = weight(64, 8)
    output = run(lambda x: torch.exp(torch.dropout(x, 0.5, True)), x)
    torch.manual_seed(3)
    expected = torch.rand(5)
    torch.manual_seed(3)
    gradients(output, x)
    assert torch.equal(torch.rand(5), expected)


@pytest.mark.parametrize("inside", [True, False])
def test_the_recompute_has_the_autocast_settings_of_the_forward(inside: bool) -> None:
    w, x = weight(8, 8), weight(4, 8)
    dtypes = []

    def forward(x: Tensor) -> Tensor:
        y = x @ w
        dtypes.append(y.dtype)
        return torch.exp(y.float())

    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        output = run(forward, x)
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        gradients(output, w)
    assert dtypes == [torch.bfloat16 if inside else torch.float32] * 2


def test_backward_within_no_grad_recomputes_with_gradients() -> None:
    w, x = weight(8, 8), weight(4, 8)
    output = run(lambda x: torch.exp(x @ w), x).sum()
    expected = gradients(torch.exp(x @ w), w)
    with torch.no_grad():
        assert_same(list(torch.autograd.grad(output, (w,))), expected)


def test_nothing_but_the_inputs_lives_until_backward() -> None:
    x = weight(4, 8)
    inside: list[weakref.ref[Tensor]] = []

    def forward(x: Tensor) -> Tensor:
        y = torch.exp(x)
        inside.append(weakref.ref(y))
        return torch.exp(y.sin())

    output = run(forward, x)
    assert inside[0]() is None
    gradients(output, x)
    assert len(inside) == 2


class _Watched(torch.autograd.Function):
    """Identity that saves a copy of its input and tells how many copies live when its backward runs."""

    copies: list[weakref.ref[Tensor]]
    living: list[int]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.clone())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        saved = ctx.saved_tensors[0]
        _Watched.copies.append(weakref.ref(saved))
        del saved
        _Watched.living.append(sum(each() is not None for each in _Watched.copies))
        return gradients[0]


def test_a_value_goes_when_backward_has_used_it() -> None:
    _Watched.copies, _Watched.living = [], []
    x = weight(4, 8)

    def forward(x: Tensor) -> Tensor:
        for _ in range(4):
            x = _Watched.apply(x)
        return x

    gradients(run(forward, x), x)
    assert _Watched.living == [1, 1, 1, 1]  # that of the node itself, and no other


def test_inputs_go_with_the_graph() -> None:
    x = weight(4, 8)
    y = x.sin()
    gone = weakref.ref(y)
    output = run(lambda y: torch.exp(y), y)
    del y
    assert gone() is not None
    gradients(output, x)
    del output
    gc.collect()
    assert gone() is None


def test_a_second_backward_has_the_same_gradients() -> None:
    w, x = weight(8, 8), weight(4, 8)
    output = run(lambda x: torch.exp(x @ w), x).sum()
    first = torch.autograd.grad(output, (w, x), retain_graph=True)
    assert_same(list(torch.autograd.grad(output, (w, x))), list(first))


class _ReadsTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * (ctx.saved_tensors[0] + ctx.saved_tensors[0])


def test_a_node_may_read_what_it_saved_twice_and_the_forward_runs_again_once() -> None:
    x = weight(4, 8)
    calls = []

    def forward(x: Tensor) -> Tensor:
        calls.append(1)
        return _ReadsTwice.apply(_ReadsTwice.apply(x.sin()))

    assert_same(gradients(run(forward, x), x), gradients(x.sin() ** 4, x))
    assert len(calls) == 2


def test_the_recompute_ends_with_the_last_saved_tensor() -> None:
    x = weight(4, 8)
    ends = []

    def forward(x: Tensor) -> Tensor:
        y = torch.exp(x)
        ends.append(1)
        return y + 1

    gradients(run(forward, x), x)
    assert len(ends) == 1


def test_a_module_that_catches_exceptions_lets_the_end_of_the_recompute_through() -> None:
    x = weight(4, 8)
    caught = []

    def forward(x: Tensor) -> Tensor:
        try:
            return torch.exp(x)
        except Exception as error:
            caught.append(error)
            return x

    gradients(run(forward, x), x)
    assert caught == []


def test_a_recompute_that_fails_fails_the_backward() -> None:
    x = weight(4, 8)
    calls = []

    def forward(x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("once is enough")
        return torch.exp(x)

    with pytest.raises(ValueError, match="once is enough"):
        gradients(run(forward, x), x)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda x: torch.exp(x[:2]), r"tensor 0: \[2, 8\] float32 on cpu instead of \[4, 8\] float32 on cpu"),
        (lambda x: torch.exp(x.double()), r"tensor 0: \[4, 8\] float64 on cpu instead of \[4, 8\] float32 on cpu"),
        (lambda x: x + 1, "0 saved tensors instead of 1"),
    ],
)
def test_other_saved_tensors_are_an_error_that_names_the_unit(
    other: Callable[[Tensor], Tensor], difference: str
) -> None:
    x = weight(4, 8)
    output = Recompute("block 3", lambda inputs: torch.exp(*inputs), lambda inputs: other(*inputs)).run([x])
    with pytest.raises(ConfigError, match=f"block 3: .*found other tensors .{difference}"):
        gradients(output, x)


def test_an_input_written_after_the_forward_is_an_error() -> None:
    x = weight(4, 8)
    y = x.sin()
    output = run(torch.exp, y)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(output, x)


def test_the_hooks_for_inputs_see_the_inputs_alone() -> None:
    x = weight(4, 8)
    seen: list[torch.Size] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor.shape)
        return tensor

    output = run(lambda x: torch.exp(x[:2]), x, hooks=saved_tensors_hooks(pack, lambda tensor: tensor))
    gradients(output, x)
    assert seen == [x.shape]


def test_a_forward_that_fails_leaves_no_hooks() -> None:
    def forward(x: Tensor) -> Tensor:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(forward, weight(2))
    assert not saved_tensors_are_seen()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_forward_may_checkpoint_parts_of_itself(reentrant: bool) -> None:
    w, x = weight(8, 8), weight(4, 8)

    def part(x: Tensor) -> Tensor:
        return torch.tanh(torch.exp(x @ w) @ w)

    def forward(x: Tensor) -> Tensor:
        return torch.exp(torch_checkpoint(part, x.sin(), use_reentrant=reentrant))

    output = run(forward, x).sum()
    output.backward()
    assert_same([x.grad], gradients(torch.exp(part(x.sin())), x))


def test_a_tensor_that_autograd_dropped_is_not_computed_for_nothing() -> None:
    x = weight(4, 8)
    kept: list[weakref.ref[Tensor]] = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            copy = x.clone()
            kept.append(weakref.ref(copy))
            ctx.save_for_backward(copy)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            raise AssertionError("its output is not used")

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.clone())
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            assert ctx.saved_tensors[0].shape == (4, 8)
            assert kept[1]() is None
            return gradients[0]

    def forward(x: Tensor) -> Tensor:
        Keep.apply(x)
        return Look.apply(x)

    gradients(run(forward, x), x)
    assert len(kept) == 2


def test_no_tensor_of_a_recompute_outlives_its_backward() -> None:
    # exp saves its own output: kept with its graph, it would keep itself.
    def living() -> int:
        gc.collect()
        return sum(type(each) is Tensor for each in gc.get_objects())

    x = weight(4, 8)
    gradients(run(lambda x: torch.exp(torch.exp(x)), x), x)
    before = living()
    gradients(run(lambda x: torch.exp(torch.exp(x)), x), x)
    assert living() == before


class _Counting(nn.Module):
    """A block whose forward changes a buffer, and whose node reads what it saved twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x + _ReadsTwice.apply(torch.tanh(self.linear(x)) / (1 + self.calls))


class _Force(nn.Module):
    """A block whose forward has a backward of its own, as a force field's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        energy = torch.tanh(self.linear(x)).square().sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return x - 0.1 * force


@pytest.mark.parametrize("block", [_Counting, _Force])
def test_blocks_with_a_buffer_or_a_backward_of_their_own_train_as_plain_torch(block: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = Tiny()
    model.h = nn.ModuleList(block() for _ in range(3))
    assert_same_training(model)
