"""Embeddings, heads and other large modules outside of the repeated ones: blocks of their own, used in any way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.unit.fake_session import FakeSession, FakeStore
from tests.unit.worker_models import assert_same_state, assert_same_training, plain_adamw, run_workers, train
from torch import Tensor, nn
from torch.nn import functional

import luwu
from harness.small_models import VOCABULARY, WIDTH, Block, loss_of, tokens
from luwu.errors import StepOrderError
from luwu.optim.adamw import AdamW
from luwu.worker import layout as layout_module
from luwu.worker.layout import describe, lay_out
from luwu.worker.parallelize import full_state_dict, parallelize
from luwu.worker.tiled_loss import tiled_cross_entropy

ROWS = 5 * VOCABULARY  # of tables, so that they are larger than a block


class Wide(nn.Module):
    """A language model whose embedding and head are larger than a block."""

    def __init__(self, *, tied: bool = False, bias: bool = False, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(ROWS, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, ROWS, bias=bias)
        if tied:
            self.head.weight = self.embed.weight

    def inner(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.h:
            x = block(x)
        return self.norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.inner(ids))


def wide(kind: type[Wide] = Wide, **options) -> Wide:
    torch.manual_seed(1)
    return kind(**options)


def events(session: FakeSession) -> list[tuple[str, str]]:
    """The last attempt's, by the names of the blocks."""
    log, manifest = session.endpoint.log, session.store.manifest
    assert manifest is not None
    begins = [place for place, (what, _) in enumerate(log) if what == "begin"]
    ends = [place for place, (what, _) in enumerate(log) if what in ("commit", "skip")]
    names = [block.name for block in manifest.blocks]
    return [(what, names[block]) for what, block in log[begins[-1] + 1 : ends[-1]]]


def named(session: FakeSession, what: str) -> list[str]:
    return [name for event, name in events(session) if event == what]


def block_names(session: FakeSession) -> list[str]:
    assert session.store.manifest is not None
    return [block.name for block in session.store.manifest.blocks]


# What becomes a block


def names_of(model: nn.Module, **options) -> list[str]:
    return [block.name for block in describe(model, **options).blocks]


def test_embedding_and_head_are_blocks_and_the_norm_is_the_root() -> None:
    assert names_of(wide()) == ["<root>", "embed", "h.0", "h.1", "h.2", "head"]
    assert names_of(wide(), blocks=[Block]) == ["<root>", "embed", "h.0", "h.1", "h.2", "head"]


def test_a_tied_head_is_one_block_with_its_embedding() -> None:
    manifest = describe(wide(tied=True))
    assert [block.name for block in manifest.blocks] == ["<root>", "embed", "h.0", "h.1", "h.2"]
    (table,) = manifest.blocks[1].parameters
    assert (table.name, table.aliases) == ("embed.weight", ("head.weight",))


def test_small_modules_stay_in_the_root() -> None:
    model = wide()
    model.embed = nn.Embedding(VOCABULARY, WIDTH)  # less than a quarter of a block
    assert names_of(model) == ["<root>", "h.0", "h.1", "h.2", "head"]


def test_a_model_without_repeated_modules_is_all_root() -> None:
    assert names_of(nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, ROWS))) == ["<root>"]


def test_modules_of_a_list_stay_in_the_root() -> None:
    model = wide()
    model.heads = nn.ModuleList([nn.Linear(WIDTH, ROWS)])  # a forward may choose one
    assert names_of(model) == ["<root>", "embed", "h.0", "h.1", "h.2", "head"]


def test_a_parameter_tied_to_a_repeated_block_stays_in_the_root() -> None:
    model = wide()
    model.h[0].table = model.embed.weight
    assert names_of(model) == ["<root>", "h.0", "h.1", "h.2", "head"]


def test_attention_is_one_block_with_the_projection_that_it_never_calls() -> None:
    model = wide()
    model.pool = nn.MultiheadAttention(WIDTH, 2)
    manifest = describe(model)
    pool = next(block for block in manifest.blocks if block.name == "pool")
    assert "pool.out_proj.weight" in [parameter.name for parameter in pool.parameters]


def test_compiled_modules_stay_in_the_root() -> None:
    model = wide()
    model.head.compile()
    assert names_of(model) == ["<root>", "embed", "h.0", "h.1", "h.2"]


# Order and memory


@pytest.mark.counts_pulls
@pytest.mark.parametrize("checkpoint", [True, False])
def test_the_head_is_pushed_first_and_the_embedding_last(checkpoint: bool) -> None:
    session = FakeSession()
    model = parallelize(wide(), session, checkpoint=checkpoint)
    train(model, AdamW(model, lr=1e-2), range(3))
    assert named(session, "push") == ["head", "h.2", "h.1", "h.0", "embed", "<root>"]
    assert named(session, "pull") == ["<root>", "embed", "h.0", "h.1", "h.2", "head", "h.2", "h.1", "h.0"]


@pytest.mark.counts_pulls
def test_a_tied_table_is_pulled_for_each_use_and_pushed_once_after_both() -> None:
    session = FakeSession()
    model = parallelize(wide(tied=True), session)
    train(model, AdamW(model, lr=1e-2), range(3))
    assert named(session, "push") == ["h.2", "h.1", "h.0", "embed", "<root>"]
    assert named(session, "pull") == ["<root>", "embed", "h.0", "h.1", "h.2", "embed", "h.2", "h.1", "h.0"]


@pytest.mark.parametrize("tied", [False, True])
def test_a_worker_holds_the_root_and_two_blocks_at_most(tied: bool) -> None:
    session = FakeSession()
    model = parallelize(wide(tied=tied), session)
    train(model, AdamW(model, lr=1e-2), range(3))
    held: set[str] = set()
    most = 0
    for what, name in events(session):
        held = held | {name} if what == "pull" else held - {name} if what == "release" else held
        most = max(most, len(held - {"<root>"}))
    assert most == 2


# Any use is right


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_training_is_that_of_torch(tied: bool, checkpoint: bool) -> None:
    assert_same_training(wide(tied=tied), tolerance=0, checkpoint=checkpoint)


class ByName(Wide):
    """The head is the embedding's table, used by name."""

    def __init__(self) -> None:
        super().__init__()
        del self.head

    def forward(self, ids: Tensor) -> Tensor:
        return functional.linear(self.inner(ids), self.embed.weight)


class Regularised(Wide):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + 1e-2 * self.head.weight.pow(2).sum() + self.embed.weight.detach().mean()


class Twice(Wide):
    """Embedding and head are called several times, the head in turn with the layers."""

    def forward(self, ids: Tensor) -> Tensor:
        x, logits = self.embed(ids) + self.embed(ids.flip(1)), torch.zeros(())
        for block in self.h:
            x = block(x)
            logits = logits + self.head(self.norm(x))
        return logits + self.head(self.embed(ids))


class Inline(nn.Module):
    """A table that is added to its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(ROWS, WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x += self.table[: x.shape[1]]
        return x, self.table[:2]


class Positions(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.positions = Inline()

    def inner(self, ids: Tensor) -> Tensor:
        x, rows = self.positions(self.embed(ids) * 1.0)
        for block in self.h:
            x = block(x)
        return self.norm(x) + rows.mean()


class Attending(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.inner(ids)
        return self.head(x + self.pool(x, x, x, need_weights=False)[0])


class Unused(Wide):
    """The head's first call has no gradient, and the embedding has one only through a view."""

    def forward(self, ids: Tensor) -> Tensor:
        self.head(torch.ones(WIDTH))
        with torch.no_grad():
            shift = self.head(torch.ones(WIDTH)).mean()
        return super().forward(ids) + shift


class Checkpointing(Wide):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.inner(ids)
        return torch.utils.checkpoint.checkpoint(self.head, x, use_reentrant=False)


class Reaching(Block):
    """A layer that reaches the embedding and the head by a way that modules do not show."""

    def __init__(self, outside: list[Wide]) -> None:
        super().__init__()
        self.outside = outside

    def forward(self, x: Tensor) -> Tensor:
        (model,) = self.outside
        return super().forward(x) + model.embed(torch.arange(x.shape[1])) + model.head.weight.mean()


class HiddenIn(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList(Reaching([self]) for _ in range(3))


class Feeling(Wide):
    """A part of the forward has gradients in an evaluation, too."""

    def forward(self, ids: Tensor) -> Tensor:
        with torch.enable_grad():
            return self.head(self.embed(ids))


class Normed(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, ROWS))


KINDS: list[Callable[[], nn.Module]] = [
    ByName, Regularised, Twice, Positions, Attending, Unused, Checkpointing, HiddenIn, Feeling, Normed,
]  # fmt: skip


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_any_use_trains_as_torch_does(kind: type[Wide], checkpoint: bool) -> None:
    session = FakeSession()
    assert_same_training(wide(kind), session=session, checkpoint=checkpoint)
    assert "embed" in block_names(session)


def test_the_head_by_name_outside_of_the_model_trains_as_torch_does() -> None:
    def loss(model: nn.Module, step: int) -> Tensor:
        ids = tokens(step)
        hidden = model(ids[:, :-1]) @ model.head.weight
        return functional.cross_entropy(model.head(hidden).flatten(0, 1), ids[:, 1:].flatten())

    assert_same_training(wide(), loss)


def test_a_table_used_by_name_is_held_and_pushed_when_the_backward_is_over() -> None:
    session = FakeSession()
    model = parallelize(wide(ByName), session)
    train(model, AdamW(model, lr=1e-2), range(3))
    assert named(session, "push") == ["h.2", "h.1", "h.0", "embed", "<root>"]
    assert session.endpoint.held == set()
    assert bool(torch.isnan(model.embed.weight).all())


@pytest.mark.counts_pulls
def test_a_loss_in_tiles_uses_the_table_as_a_call_does() -> None:
    class Tiled(ByName):
        def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
            return tiled_cross_entropy(self.inner(ids), self.embed.weight, targets, tile_rows=5)

    def loss(model: nn.Module, step: int) -> Tensor:
        ids = tokens(step)
        return model(ids[:, :-1], ids[:, 1:])

    session = FakeSession()
    assert_same_training(wide(Tiled), loss, session=session)
    assert named(session, "pull") == ["<root>", "embed", "h.0", "h.1", "h.2", "embed", "h.2", "h.1", "h.0"]
    assert named(session, "push") == ["h.2", "h.1", "h.0", "embed", "<root>"]


@pytest.mark.parametrize("kind", [ByName, Twice, Wide, Feeling])
def test_evaluation_between_and_within_steps_reads_the_same(kind: type[Wide]) -> None:
    model, session = wide(kind), FakeSession()
    expected = model(tokens(0))
    parallelize(model, session)
    with torch.no_grad():
        assert torch.equal(model(tokens(0)), expected)
    optimizer = AdamW(model, lr=0.0, weight_decay=0.0)
    for step in range(2):
        loss = loss_of(model, step)
        with torch.no_grad():
            assert torch.equal(model(tokens(0)), expected)
            assert torch.equal(model.embed(tokens(0)), model.embed.weight[tokens(0)])
        loss.backward()
        optimizer.step()
    assert session.endpoint.held == set()


def test_a_part_called_alone_with_gradients_is_refused() -> None:
    model = parallelize(wide(), FakeSession())
    with pytest.raises(StepOrderError, match="head: called with gradients on its own"):
        model.head(torch.ones(WIDTH))
    with torch.no_grad():
        assert not bool(torch.isnan(model.head(torch.ones(WIDTH))).any())


def test_a_forward_without_a_backward_is_given_up_and_frees_what_was_held() -> None:
    session = FakeSession()
    model = parallelize(wide(Regularised), session)
    optimizer = AdamW(model, lr=1e-2)
    model(tokens(0))
    model(tokens(1)).sum().backward()
    optimizer.step()
    assert session.endpoint.held == set()
    assert session.rolled_back == 1


def test_frozen_parts_are_pulled_and_never_pushed() -> None:
    model = wide()
    model.embed.requires_grad_(False)
    model.head.requires_grad_(False)
    session = FakeSession()
    assert_same_training(model, session=session, tolerance=0)
    assert block_names(session) == ["<root>", "embed (frozen)", "h.0", "h.1", "h.2", "head (frozen)"]


@pytest.mark.parametrize("kind", [Wide, Twice, ByName])
def test_several_backward_passes_in_a_step_add_up(kind: type[Wide]) -> None:
    model = wide(kind)
    peer = copy.deepcopy(model)
    session = FakeSession()
    parallelize(model, session)
    optimizer = AdamW(model, lr=1e-2)
    plain = plain_adamw(peer, lr=1e-2)
    for step in range(2):
        with luwu.no_sync(model):
            loss_of(model, 2 * step).backward()
        loss_of(model, 2 * step + 1).backward()
        optimizer.step()
        for part in (0, 1):
            loss_of(peer, 2 * step + part).backward()
        plain.step()
        plain.zero_grad()
    assert_same_state(full_state_dict(model), peer.state_dict(), 1e-5)
    assert session.endpoint.held == set()


@pytest.mark.parametrize("kind", [Wide, Twice, ByName])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_have_the_losses_of_the_whole_root(kind: type[Wide], dtype: torch.dtype, monkeypatch) -> None:
    split, whole = (losses(kind, outer, monkeypatch, dtype=dtype) for outer in (True, False))
    assert split == whole


def losses(kind: type[Wide], outer: bool, monkeypatch, **options) -> list[float]:
    monkeypatch.setattr(layout_module, "lay_out", lambda *args, **settings: lay_out(*args, outer=outer))
    model = parallelize(wide(kind), FakeSession(), **options)
    optimizer = AdamW(model, lr=1e-2)
    found = []
    for step in range(4):
        value = loss_of(model, step)
        optimizer.scale(value).backward()
        optimizer.step()
        found.append(value.item())
    return found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"checkpoint": False}, {"micro_batch_size": 2}, {"block_dtypes": {"h.1": torch.bfloat16}}]
)
def test_losses_are_those_of_the_whole_root_to_the_bit(tied: bool, options, monkeypatch) -> None:
    kind = type("Tied", (Wide,), {"__init__": lambda self: Wide.__init__(self, tied=tied)})
    split, whole = (losses(kind, outer, monkeypatch, **options) for outer in (True, False))
    assert split == whole


# Stores from before


def old_store(monkeypatch, model: nn.Module, session) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(layout_module, "lay_out", lambda *args, **settings: lay_out(*args, outer=False))
        parallelize(model, session)
        train(model, AdamW(model, lr=1e-2), range(2))


def test_a_store_from_before_keeps_its_blocks(monkeypatch) -> None:
    store = FakeStore()
    old_store(monkeypatch, wide(), FakeSession(store))
    session = FakeSession(store)
    model = parallelize(wide(), session)
    assert block_names(session) == ["<root>", "h.0", "h.1", "h.2"]
    train(model, AdamW(model, lr=1e-2), range(2))
    assert "embed.weight" in full_state_dict(model)


def test_a_store_of_this_host_from_before_keeps_its_blocks(tmp_path: Path, monkeypatch) -> None:
    model = wide()
    with luwu.open(tmp_path, memory="64MiB") as session:
        old_store(monkeypatch, model, session)
        values = full_state_dict(model)

    def work(session) -> None:
        again = parallelize(wide(), session)
        assert [unit.name for unit in again._luwu_runtime.units] == ["<root>", "h.0", "h.1", "h.2"]
        found = full_state_dict(again)
        assert all(torch.equal(found[name], value) for name, value in values.items())
        train(again, AdamW(again, lr=1e-2), range(2))

    run_workers(tmp_path, work)


@pytest.mark.parametrize("kind", [Wide, ByName, Twice])
def test_two_workers_train(kind: type[Wide], tmp_path: Path) -> None:
    found: list[dict[str, Tensor]] = []
    models = [wide(kind) for _ in range(2)]  # beforehand: threads share torch's generator

    def work(session) -> None:
        model = parallelize(models[session.rank], session)
        optimizer = AdamW(model, lr=1e-2)
        for step in range(3):
            loss_of(model, 2 * step + session.rank).backward()
            optimizer.step()
        found.append(full_state_dict(model))

    run_workers(tmp_path, work)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


class TwoHeads(nn.Module):
    """Uses the head that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(8))
        self.a, self.b = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64)

    def forward(self, tokens: Tensor, head: str) -> Tensor:
        x = self.embed(tokens)
        for layer in self.h:
            x = layer(x)
        return getattr(self, head)(x).square().mean()


@pytest.mark.timeout(60)
def test_two_workers_may_use_different_outer_units_in_a_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    models = [TwoHeads() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    peer = TwoHeads()
    peer.load_state_dict(models[0].state_dict())
    found: dict[int, dict[str, Tensor]] = {}
    data = torch.randint(16, (4, 5), generator=torch.Generator().manual_seed(1))

    def work(session) -> None:
        model = parallelize(models[session.rank], session)
        optimizer = AdamW(model, lr=1e-2)
        for step in range(3):
            model(data, "ab"[(session.rank + step) % 2]).backward()
            optimizer.step()
        found[session.rank] = full_state_dict(model)

    run_workers(tmp_path, work)
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-2)
    for _ in range(3):
        ((peer(data, "a") + peer(data, "b")) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, value in peer.state_dict().items():
        assert torch.equal(found[0][name], found[1][name])
        assert torch.allclose(found[0][name], value, atol=1e-5), name


def test_functions_of_torch_func_over_an_outer_unit() -> None:
    class Mapped(Wide):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            for block in self.h:
                x = block(x)
            return torch.vmap(self.head)(x)

    assert_same_training(wide(Mapped))


def test_a_copy_of_a_parameter_reads_as_the_parameter_does_outside_of_a_forward() -> None:
    model = parallelize(wide(), FakeSession())
    for copied in copy.deepcopy(list(model.parameters())):
        assert torch.isnan(2 * copied).all()
