"""Blocks that a worker holds, and when; nothing of a released block is kept."""

import gc
import inspect
import weakref

import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import assert_absent, train
from torch import Tensor, nn

from harness.small_models import WIDTH, Tiny, tokens
from luwu.errors import AttemptVoidError, ConfigError
from luwu.optim.adamw import AdamW
from luwu.worker.parallelize import full_state_dict, parallelize

BOTH_WAYS = pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "references"])


def attempts_of(session: FakeSession) -> list[list[tuple[str, int]]]:
    log, attempts = session.endpoint.log, []
    for entry in log:
        if entry[0] == "begin":
            attempts.append([])
        elif attempts:
            attempts[-1].append(entry)
    return attempts


@pytest.mark.host_only
@BOTH_WAYS
def test_first_step_pulls_on_demand_and_later_ones_ahead(checkpoint):
    model, session = Tiny(depth=3), FakeSession()
    parallelize(model, session, checkpoint=checkpoint)
    train(model, AdamW(model), range(3))
    first, second, third = attempts_of(session)
    assert [entry for entry in first if entry[0] == "pull"] == [("pull", block) for block in (0, 1, 2, 3, 3, 2, 1)]
    assert second == third == [
        ("pull", 0), ("pull", 1), ("pull", 2), ("release", 1), ("pull", 3), ("release", 2),  # 3 stays: it is next again
        ("pull", 2), ("push", 3), ("release", 3), ("pull", 1), ("push", 2), ("release", 2), ("push", 1), ("release", 1),
        ("push", 0), ("release", 0), ("commit", -1),
    ]  # fmt: skip


@pytest.mark.host_only
def test_an_attempt_that_expects_no_order_pulls_as_the_first_one():
    """A worker that is new in it pulls so, and over UDP all must pull alike. A roll-back changes nothing of that."""
    model, session = Tiny(depth=3), FakeSession()
    parallelize(model, session)
    optimizer = AdamW(model)
    train(model, optimizer, range(2))
    session.endpoint.forgets_order, session.endpoint.voids = True, 1
    with pytest.raises(AttemptVoidError):
        train(model, optimizer, range(1))
    train(model, optimizer, range(1))
    session.endpoint.forgets_order = False
    train(model, optimizer, range(1))
    first, second, void, new, last = attempts_of(session)
    assert void[:-1] == new[:-1] == first[:-1] != second[:-1] == last[:-1]


@pytest.mark.host_only
def test_evaluation_pulls_ahead_too():
    model, session = Tiny(depth=3), FakeSession()
    parallelize(model, session)
    with torch.no_grad():
        model(tokens(0))
        session.endpoint.log.clear()
        model(tokens(0))
    assert session.endpoint.log == [
        ("pull", 0), ("pull", 1), ("pull", 2), ("release", 1), ("pull", 3), ("release", 2), ("release", 3),
        ("release", 0),
    ]  # fmt: skip


@pytest.mark.host_only
@BOTH_WAYS
def test_peak_is_the_root_and_two_blocks_at_any_depth(checkpoint):
    peaks = set()
    for depth in (2, 4, 16):
        model, session = Tiny(depth=depth), FakeSession()
        parallelize(model, session, checkpoint=checkpoint)
        train(model, AdamW(model), range(3))
        peaks.add(session.endpoint.peak_held_bytes)
        root, block = (4 * session.store.blocks[index].manifest.elements for index in (0, 1))
        assert peaks == {root + 2 * block}


class Spy(nn.Module):
    """Keeps weak references to what it made of its parameters."""

    def __init__(self, seen: list[weakref.ref]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self._seen = seen

    def forward(self, x: Tensor) -> Tensor:
        view = self.linear.weight.t()
        self._seen.append(weakref.ref(view))
        return x + torch.tanh(x @ view + self.linear.bias)


@BOTH_WAYS
def test_autograd_keeps_no_tensor_of_a_released_block(checkpoint):
    seen: list[weakref.ref] = []
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Spy(seen) for _ in range(3)))
    session = FakeSession()
    parallelize(model, session, blocks=[Spy], checkpoint=checkpoint)
    AdamW(model)
    loss = model(torch.randn(2, WIDTH)).sum()
    gc.collect()
    assert len(seen) == 3
    assert not any(reference() is not None for reference in seen)
    assert session.endpoint.held == set()  # between forward and backward; there is no root
    loss.backward()
    assert session.endpoint.held == set()


class Leaky(nn.Module):
    """Returns its own parameter and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self) -> tuple[Tensor, Tensor]:
        return self.table, self.table[1]


@BOTH_WAYS
def test_outputs_that_share_memory_with_a_block_are_copied(checkpoint):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.leaky = Leaky()
            self.own = nn.Parameter(torch.randn(WIDTH))

        def forward(self) -> tuple[Tensor, Tensor, Tensor]:
            return *self.leaky(), self.own

    model, session = Model(), FakeSession()
    expected = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    parallelize(model, session, blocks=[Leaky], checkpoint=checkpoint)
    optimizer = AdamW(model, lr=0.0, weight_decay=0.0)
    with torch.no_grad():
        table, _, own = model()
    assert torch.equal(table, expected["leaky.table"])
    assert torch.equal(own, expected["own"])
    table, row, own = model()
    (table.sum() + row.sum() + own.sum()).backward()
    assert torch.equal(row, expected["leaky.table"][1])
    assert torch.equal(own, expected["own"])
    optimizer.step()


def test_a_changed_saved_tensor_is_noticed_without_checkpointing():
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x).exp()
            z = y * y
            y.add_(1)
            return z

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Changes())
    parallelize(model, FakeSession(), blocks=[Changes], checkpoint=False)
    AdamW(model)
    loss = model(torch.randn(2, WIDTH)).sum()
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_released_parameters_read_nan_and_cannot_be_written():
    model = Tiny()
    parallelize(model, FakeSession())
    assert_absent(model)
    with torch.no_grad(), pytest.raises(RuntimeError, match="single memory location"):
        model.head.weight.copy_(torch.ones_like(model.head.weight))
    with torch.no_grad():
        model.h[1].norm.weight.fill_(2.0)
    AdamW(model)
    with pytest.raises(ConfigError, match=r"h\.1\.norm\.weight.*written in place"):
        model(tokens(0))


def test_a_unit_can_be_called_alone_without_gradients():
    model, session = Tiny(), FakeSession()
    block, x = model.h[1], torch.randn(2, WIDTH)
    expected = block(x)
    parallelize(model, session)
    with torch.no_grad():
        torch.testing.assert_close(block(x), expected)
    assert session.endpoint.held == set()


def test_everything_is_freed_with_the_model():
    model, session = Tiny(), FakeSession()
    parallelize(model, session)
    optimizer = AdamW(model)
    train(model, optimizer, range(1))
    references = [weakref.ref(thing) for thing in (model, model.head.weight, optimizer, session.endpoint)]
    del model, optimizer, session
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


def test_names_of_parameters_and_signature_stay():
    model = Tiny()
    keys, signature = list(model.state_dict()), inspect.signature(model.forward)
    parallelize(model, FakeSession())
    assert list(model.state_dict(keep_vars=True)) == list(full_state_dict(model)) == keys
    assert inspect.signature(model.forward) == signature


@pytest.mark.host_only
def test_a_unit_kept_in_vain_is_released():
    class Turns(Tiny):
        order = (0, 1, 2)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            for index in self.order:
                x = self.h[index](x)
            return self.head(self.norm(x))

    model, session = Turns(depth=3), FakeSession()
    parallelize(model, session)
    optimizer = AdamW(model)
    train(model, optimizer, range(2))
    model.order = (2, 1, 0)  # block 3 was last, then first in backward
    train(model, optimizer, range(2))
    model(tokens(0))
    assert session.endpoint.held == {0, 1}
    with torch.no_grad():  # pulls other units while the last one is kept
        model(tokens(0))
    assert session.endpoint.held == {0}
    root, block = (4 * session.store.blocks[index].manifest.elements for index in (0, 1))
    assert session.endpoint.peak_held_bytes == root + 2 * block
