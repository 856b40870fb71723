"""First values: from a model on meta, the same bits however it is cut up; from a real one, as they are."""

import pytest
import torch
from tests.unit.fake_session import FakeSession, FakeStore
from tests.unit.worker_models import assert_absent, assert_same_state, train
from torch import Tensor, nn

from harness.small_models import WIDTH, Block, Tiny
from luwu.errors import ConfigError
from luwu.optim.adamw import AdamW
from luwu.worker.parallelize import full_state_dict, parallelize


def on_meta(make, **options) -> nn.Module:
    with torch.device("meta"):
        return make(**options)


class Mixed(nn.Module):
    """Parameters, buffers, a module with `_reset_parameters`, one shared by units, norms with statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True, dropout=0.0) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8)) for _ in range(2))
        self.norms[1][1].weight = self.norms[0][1].weight

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x).mean(1)).unsqueeze(1) + x
        return x


def test_real_values_are_kept():
    torch.manual_seed(3)
    model = Tiny(tied=True)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    parallelize(model, FakeSession())
    assert_same_state(full_state_dict(model), expected, 0.0)
    assert_absent(model)


@pytest.mark.parametrize(("make", "chosen"), [(Tiny, nn.Linear), (Mixed, nn.Sequential)])
def test_meta_gives_the_same_bits_for_any_choice_of_blocks(make, chosen):
    state = torch.random.get_rng_state()
    states = []
    for blocks in (None, [], [chosen], ["*"]):
        model = on_meta(make)
        parallelize(model, FakeSession(), blocks, seed=7)
        assert_absent(model)
        states.append(full_state_dict(model))
    assert torch.equal(torch.random.get_rng_state(), state)  # the global generator is untouched
    for other in states[1:]:
        assert_same_state(other, states[0], 0.0)
    assert not any(bool(torch.isnan(value).any()) for value in states[0].values())
    other = on_meta(make)
    parallelize(other, FakeSession(), seed=8)
    assert any(not torch.equal(value, states[0][name]) for name, value in full_state_dict(other).items())


def test_meta_and_real_train_alike():
    torch.manual_seed(0)
    model, twin = on_meta(Tiny, tied=True), Tiny(tied=True)
    parallelize(model, FakeSession(), init=None)
    twin.load_state_dict(full_state_dict(model))
    parallelize(twin, FakeSession())
    assert model.head.weight is model.embed.weight
    assert train(model, AdamW(model), range(3)) == train(twin, AdamW(twin), range(3))
    assert_same_state(full_state_dict(model), full_state_dict(twin), 0.0)


def test_ranks_other_than_the_first_materialise_nothing():
    store = FakeStore()
    first, second = on_meta(Mixed), on_meta(Mixed)
    parallelize(first, FakeSession(store))
    store.manifest, manifest = None, store.manifest  # as if the store were still fresh

    class Second(FakeSession):
        def attach(self, manifest, **how):
            self.store.manifest = manifest
            return super().attach(manifest) or True

        def initialised(self):
            raise AssertionError("rank 1 initialised the store")

    parallelize(second, Second(store, rank=1))
    assert store.manifest == manifest
    assert_same_state(full_state_dict(second), full_state_dict(first), 0.0)  # buffers too


def test_blocks_are_initialised_in_one_piece_of_memory():
    places = []

    def note(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            places.append(module.weight.untyped_storage().data_ptr())

    parallelize(on_meta(Tiny), FakeSession(), blocks=[Block], init=note)
    assert len(places) > 2 and len(set(places[1:])) == 1


def test_a_store_that_exists_gives_its_values():
    store = FakeStore()
    torch.manual_seed(0)
    model = Tiny()
    parallelize(model, FakeSession(store))
    train(model, AdamW(model, lr=1e-2), range(2))
    expected = full_state_dict(model)
    for again in (Tiny(), on_meta(Tiny)):
        parallelize(again, FakeSession(store))
        assert_same_state(full_state_dict(again), expected, 0.0)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(5))
        self.register_buffer("table", torch.arange(5.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.table


def test_parameters_that_nobody_initialises():
    def half(module: nn.Module) -> None:
        if isinstance(module, Bare):
            module.scale[:2] = 1.0
            module.table.zero_()

    def without_table(module: nn.Module) -> None:
        if isinstance(module, Bare):
            nn.init.constant_(module.scale, 2.0)

    def whole(module: nn.Module) -> None:
        if isinstance(module, Bare):
            nn.init.constant_(module.scale, 2.0)
            module.table.copy_(torch.arange(5.0))

    make = lambda: on_meta(lambda: nn.Sequential(nn.Linear(5, 5), Bare()))  # noqa: E731
    with pytest.raises(ConfigError, match=r"1\.scale is on the meta device.*pass parallelize\(init"):
        parallelize(make(), FakeSession())
    with pytest.raises(ConfigError, match=r"1\.scale: expected init to set all"):
        parallelize(make(), FakeSession(), init=half)
    with pytest.raises(ConfigError, match=r"buffer 1\.table: expected Bare to set all"):
        parallelize(make(), FakeSession(), init=without_table)
    model = make()
    parallelize(model, FakeSession(), init=whole)
    values = full_state_dict(model)
    assert torch.equal(values["1.scale"], torch.full((5,), 2.0))
    assert torch.equal(values["1.table"], torch.arange(5.0))


def test_buffers_that_nobody_initialises():
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("table", torch.arange(5.0))

    with pytest.raises(ConfigError, match="table is on the meta device"):
        parallelize(on_meta(Table), FakeSession())


def test_init_runs_after_reset_and_sees_its_modules_whole():
    seen: list[nn.Module] = []

    def init(module: nn.Module) -> None:
        seen.append(module)
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)

    model = on_meta(Tiny)
    parallelize(model, FakeSession(), init=init)
    assert {type(module) for module in seen} == {nn.Embedding, nn.LayerNorm, nn.Linear}
    assert full_state_dict(model)["head.weight"].std() < 0.03


def test_parameter_attributes_and_requires_grad_survive():
    model = on_meta(Tiny)
    model.head.weight.is_head = True
    model.h[0].requires_grad_(False)
    parallelize(model, FakeSession())
    assert model.head.weight.is_head
    assert not any(parameter.requires_grad for parameter in model.h[0].parameters())
    assert model.h[1].up.weight.shape == (3 * WIDTH, WIDTH)
    assert isinstance(model.h[1], Block)
