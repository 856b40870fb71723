"""Modules that keep state in attributes between calls: trained as with plain torch, although forwards run twice."""

import copy
import gc
import random
import weakref
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import assert_same_training, train
from torch import Tensor, nn

from luwu import AdamW, parallelize
from luwu.errors import ConfigError

WIDTH = 6


class Layer(nn.Module):
    """A residual layer that adds a value from earlier calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        return x + y * self.recall(y)

    def recall(self, y: Tensor) -> Tensor:
        raise NotImplementedError


class Rebinds(Layer):
    """Has no state in the first call, so that torch would save other tensors in the recompute."""

    state: Tensor | None = None

    def recall(self, y):
        before, self.state = self.state, y.detach()
        return y if before is None else y * before


class RebindsWithGraph(Layer):
    """Like a recurrent layer that detaches its state at the start of each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.state = None

    def recall(self, y):
        before = torch.zeros_like(y) if self.state is None else self.state.detach()
        self.state = 0.5 * before + y
        return self.state


class WritesInPlace(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.state = torch.zeros(4, WIDTH)
        self.views = (self.state, 1.0)

    def recall(self, y):
        found = self.state.clone() * self.views[1] + self.views[0]
        with torch.no_grad():
            self.state.mul_(0.5).add_(y)
        return found + 1.0


class Appends(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.lists = {"seen": [], "last": deque(maxlen=1)}

    def recall(self, y):
        self.lists["seen"].append(y.detach().mean())
        self.lists["last"].append(len(self.lists["seen"]))
        return torch.stack(self.lists["seen"]).sum() + 0.1 * self.lists["last"][0]


@dataclass
class Memory:
    calls: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)


class KeepsAnObject(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()

    def recall(self, y):
        self.memory.calls += 1
        before = self.memory.values.get("y", torch.ones(()))
        self.memory.values["y"] = y.detach()
        return before * self.memory.calls


class Removes(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.full((WIDTH,), 2.0)

    def recall(self, y):
        first = vars(self).pop("first", None)
        return y if first is None else first


class WritesInsideRecurrence(Layer):
    """Writes its state in place, and the state takes part in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.state = torch.zeros(4, WIDTH)

    def recall(self, y):
        self.state = self.state.detach()
        self.state.add_(y)
        return self.state.clone()


class WritesData(Layer):
    """Writes through `.data`, which torch does not count, as moving averages of codebooks do."""

    def __init__(self) -> None:
        super().__init__()
        self.state = torch.ones(WIDTH)
        self.register_buffer("average", torch.ones(WIDTH))

    def recall(self, y):
        self.state.data.mul_(0.5)
        self.average.data.mul_(0.9).add_(0.1 * y.detach().mean(0))
        return self.state * self.average


class WritesArrays(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.array, self.bytes = np.ones(WIDTH, np.float32), bytearray(1)

    def recall(self, y):
        self.array *= 0.5
        self.bytes[0] += 1
        return torch.from_numpy(self.array.copy()) * self.bytes[0]


class DrawsOfItsOwn(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.torch, self.python = torch.Generator().manual_seed(1), random.Random(2)
        self.numpy, self.legacy = np.random.default_rng(3), np.random.RandomState(4)

    def recall(self, y):
        mask = torch.rand(y.shape, generator=self.torch) + torch.from_numpy(self.numpy.random(y.shape, np.float32))
        return mask * self.python.random() + self.legacy.rand()


class DrawsOfAll(Layer):
    """Draws from the generators that a process has for all."""

    def recall(self, y):
        return y * random.random() + np.random.rand()  # noqa: NPY002


def stack_of(layer: type[Layer], depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[layer() for _ in range(depth)], nn.Linear(WIDTH, 1))


def loss_of(model: nn.Module, step: int) -> Tensor:
    random.seed(step)
    np.random.seed(step)  # noqa: NPY002
    rows = torch.arange(4.0)[:, None].expand(4, WIDTH)
    return model(0.3 + 0.1 * step + 0.05 * rows).square().mean()


STATEFUL = [
    Rebinds, RebindsWithGraph, WritesInPlace, Appends, KeepsAnObject, Removes, WritesInsideRecurrence, WritesData,
    WritesArrays, DrawsOfItsOwn, DrawsOfAll,
]  # fmt: skip


@pytest.mark.parametrize("layer", STATEFUL)
def test_state_in_attributes_is_that_of_the_forward(layer):
    """Compare losses and parameters of five steps, and then the state itself."""
    model = stack_of(layer)
    peer = assert_same_training(model, loss_of, blocks=[layer], steps=5)
    with torch.no_grad():
        torch.testing.assert_close(loss_of(model, 7), loss_of(peer, 7), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layer", [Rebinds, WritesInPlace])
def test_state_in_attributes_without_recomputing(layer):
    assert_same_training(stack_of(layer), loss_of, blocks=[layer], checkpoint=False)


def test_an_attribute_that_is_an_alias_of_parameters_stays():
    """An LSTM keeps its parameters in a list, too; the list is neither copied nor taken for state."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
            self.hidden: tuple[Tensor, Tensor] | None = None

        def forward(self, x):
            output, hidden = self.lstm(x, self.hidden)
            self.hidden = tuple(each.detach() for each in hidden)
            return output

    torch.manual_seed(0)
    model = nn.Sequential(Recurrent(), Recurrent(), nn.Linear(WIDTH, 1))
    assert_same_training(
        model, lambda each, step: each(torch.full((2, 4, WIDTH), 0.1 + step)).square().mean(), blocks=[Recurrent]
    )


class Remembers(Layer):
    """Keeps a value with its graph, which nothing reads and no backward goes through."""

    state: Tensor | None = None

    def recall(self, y):
        self.state = (y * y).exp()
        return y


@pytest.mark.parametrize("backward", [True, False])
def test_the_state_of_a_step_does_not_keep_the_steps_before(backward):
    model = stack_of(Remembers)
    parallelize(model, FakeSession(), [Remembers])
    optimizer = AdamW(model)
    states = []
    for step in range(4):
        if backward:
            train(model, optimizer, [step], loss_of)
        else:
            loss_of(model, step)
        states.append(weakref.ref(model[1].state))
    gc.collect()
    # The last call's history holds the earlier state until the call's backward is over.
    assert [state() is None for state in states] == [True, True, backward, False]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_state_of_rows_is_not_handed_on_to_other_rows(checkpoint):
    """Rows of a batch are computed in turn with micro-batches; values that do not depend on rows may be kept."""

    class Cached(Layer):
        scale: Tensor | None = None

        def recall(self, y):
            self.scale = torch.full((WIDTH,), 0.5)
            return y * self.scale

    options = {"micro_batch_size": 2, "checkpoint": checkpoint}
    assert_same_training(stack_of(Cached), loss_of, blocks=[Cached], **options)
    model = stack_of(Rebinds)
    parallelize(model, FakeSession(), [Rebinds], **options)
    AdamW(model)
    with pytest.raises(ConfigError, match=r"block 0: attribute state: .*leave micro_batch_size out"):
        loss_of(model, 0)


CALLS = {"count": 0}


class CountsElsewhere(Layer):
    """Keeps its state in a global variable, which LuWu does not search."""

    def recall(self, y):
        CALLS["count"] += 1
        return y.mean() if CALLS["count"] == 1 else y.mean(0)


def test_state_that_cannot_be_seen_is_an_error_that_names_the_unit():
    CALLS["count"] = 0
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), CountsElsewhere(), nn.Linear(WIDTH, 1))
    twin = copy.deepcopy(model)
    session = FakeSession()
    parallelize(model, session, [CountsElsewhere])
    AdamW(model)
    with pytest.raises(ConfigError, match=r"block 1: .*found other tensors.*attributes.*checkpoint=False"):
        loss_of(model, 0).backward()
    CALLS["count"] = 0
    parallelize(twin, FakeSession(), [CountsElsewhere], checkpoint=False)
    AdamW(twin)
    loss_of(twin, 0).backward()
    assert session.step == 0
