"""Layout: places of parameters, the modules that become units, and manifests that tell models apart."""

import dataclasses

import pytest
import torch
from tests.unit.fake_session import FakeSession
from torch import nn

from harness.small_models import WIDTH, Block, Tiny
from luwu.core.manifest import BlockManifest, Manifest, ParameterManifest, first_difference
from luwu.errors import ConfigError, MemoryBudgetError, StoreFormatError
from luwu.worker.flatten import ALIGNMENT_ELEMENTS, flatten, manifest_of
from luwu.worker.parallelize import parallelize
from luwu.worker.select import select_modules
from luwu.worker.staging import HostStaging


def names_of(model: nn.Module, blocks) -> list[str]:
    return [name for name, _ in select_modules(model, blocks)]


def layout_of(model: nn.Module, blocks=None) -> Manifest:
    return manifest_of(flatten(model, select_modules(model, blocks)), torch.float32, 1024)


def test_blocks_are_chosen_by_class_pattern_or_repetition():
    model = Tiny(depth=3)
    for blocks in ([Block], ["h.*"], ["h.[0-2]"], None, ["h.0", Block]):
        assert names_of(model, blocks) == ["h.0", "h.1", "h.2"]
    assert names_of(model, ["h.1", nn.Embedding]) == ["embed", "h.1"]
    assert names_of(model, []) == []


def test_the_outermost_of_nested_matches_is_the_unit():
    assert names_of(Tiny(depth=2), [nn.Linear, Block]) == ["h.0", "h.1", "head"]
    assert names_of(Tiny(depth=2), ["*"]) == ["embed", "h.0", "h.1", "norm", "head"]


def test_the_repeated_layer_is_found_by_size():
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))
            self.stages = nn.ModuleList(nn.Sequential(Block(), nn.ReLU(), Block()) for _ in range(2))

    assert names_of(Deep(), None) == ["stages.0.0", "stages.0.2", "stages.1.0", "stages.1.2"]
    assert names_of(nn.Linear(2, 2), None) == []


def test_a_list_of_modules_may_hold_none():
    class Distilling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])
            self.between = nn.ModuleList([nn.Linear(2, 2), None])

    assert names_of(Distilling(), None) == ["layers.0", "layers.1"]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (["x.*"], r"pattern 'x\.\*' matches no module; the model has: embed, h, h\.0"),
        ([nn.Conv1d], "has no Conv1d inside; it has: Block"),
        ([Tiny], "has no Tiny inside"),
        ([3], "found 3"),
        ("h.*", r"found 'h\.\*'; put it in a list"),
        (Block, "put it in a list"),
    ],
)
def test_blocks_that_match_nothing(blocks, message):
    with pytest.raises(ConfigError, match=message):
        select_modules(Tiny(), blocks)


def test_blocks_are_numbered_and_aligned():
    model = Tiny(depth=2)
    model.embed.requires_grad_(False)
    model.h[1].norm.requires_grad_(False)
    manifest = layout_of(model)
    assert [(block.name, block.trainable) for block in manifest.blocks] == [
        ("<root>", True), ("<root> (frozen)", False), ("h.0", True), ("h.1", True), ("h.1 (frozen)", False),
    ]  # fmt: skip
    for block in manifest.blocks:
        end = 0
        for parameter in block.parameters:
            assert parameter.offset == end
            end = -(-(end + parameter.numel) // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
        assert block.elements == end


def test_tied_parameters_are_stored_once():
    manifest = layout_of(Tiny(depth=1, tied=True))
    names = [parameter.name for block in manifest.blocks for parameter in block.parameters]
    assert names.count("embed.weight") == 1
    assert "head.weight" not in names
    model = Tiny(depth=3)
    model.h[2].up.weight = model.h[0].up.weight  # between units: to the root
    model.h[1].norm = nn.LayerNorm(WIDTH)
    model.extra = model.h[1].norm  # one module, inside a unit and outside
    root = layout_of(model).blocks[0]
    assert {"h.0.up.weight", "h.1.norm.weight", "h.1.norm.bias"} <= {parameter.name for parameter in root.parameters}


def test_parameters_must_be_floating_point():
    model = Tiny()
    model.h[1].table = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)
    with pytest.raises(ConfigError, match=r"h\.1\.table.*torch\.int64"):
        layout_of(model)


def test_manifest_survives_json():
    manifest = layout_of(Tiny())
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert first_difference(manifest, manifest) is None
    for text in ("", "{}", '{"dtype": "float32", "chunk_elements": 1, "blocks": [3]}'):
        with pytest.raises(StoreFormatError, match="manifest"):
            Manifest.from_json(text)


def test_first_difference_names_the_parameter():
    model = Tiny(depth=2)
    manifest = layout_of(model)
    wider = Tiny(depth=2)
    wider.h[1] = Block(WIDTH + 1)
    found = first_difference(manifest, layout_of(wider))
    assert found is not None
    assert found.startswith("parameter h.1.norm.weight: expected shape [12]")
    assert "found shape [13]" in found
    deeper = first_difference(manifest, layout_of(Tiny(depth=3)))
    assert deeper == (
        "parameter h.2.norm.weight: expected no such parameter, found shape [12] (trainable, element 0 of block h.2)"
    )
    model.h[0].norm.weight.requires_grad_(False)
    frozen = first_difference(manifest, layout_of(model))
    assert frozen == (
        "parameter h.0.norm.weight: expected shape [12] (trainable, element 0 of block h.0), "
        "found shape [12] (frozen, element 0 of block h.0 (frozen))"
    )
    assert first_difference(manifest, dataclasses.replace(manifest, dtype="bfloat16")) == (
        "dtype: expected float32, found bfloat16"
    )
    assert first_difference(manifest, dataclasses.replace(manifest, chunk_elements=1)) is None


def test_first_difference_of_padding_and_empty_blocks():
    block = BlockManifest("a", True, (ParameterManifest("w", (2,), 0, 2),), 32)
    one = Manifest("float32", 1, (block,))
    assert "64 elements" in str(
        first_difference(one, Manifest("float32", 1, (dataclasses.replace(block, elements=64),)))
    )
    more = Manifest("float32", 1, (block, BlockManifest("b", True, (), 0)))
    assert first_difference(one, more) == "number of blocks: expected 1, found 2"


def test_an_arena_that_is_too_small():
    model = Tiny()
    units = flatten(model, select_modules(model, None))
    session = FakeSession()
    session.attach(manifest_of(units, torch.float32, 1024))
    with pytest.raises(MemoryBudgetError, match="gradient arena: expected at least"):
        HostStaging(units, session.endpoint, torch.zeros(4096, dtype=torch.uint8))


@pytest.mark.host_only
@pytest.mark.parametrize(
    ("options", "message"),
    [({"dtype": torch.float64}, "float64"), ({"device": "meta"}, "meta"), ({"device": "cuda:99"}, "cuda")],
)
def test_arguments_that_cannot_work(options, message):
    with pytest.raises(ConfigError, match=message):
        parallelize(Tiny(), FakeSession(), **options)


def test_a_model_is_parallelized_once_and_has_parameters():
    model = Tiny()
    parallelize(model, FakeSession())
    with pytest.raises(ConfigError, match="found one that is"):
        parallelize(model, FakeSession())
    with pytest.raises(ConfigError, match="found none in Tanh"):
        parallelize(nn.Tanh(), FakeSession())
