"""The class alone describes an optimizer: readers of stores find its description there."""

import gc
import re
from pathlib import Path

import pytest
import torch

import luwu
from luwu.core.manifest import Manifest
from luwu.errors import ConfigError
from luwu.optim.kinds import optimizer_classes, optimizer_of, torch_optimizers
from luwu.optim.optimizer import StoreOptimizer
from luwu.optim.table import OPTIMIZERS
from luwu.store.dcp_output import _all_settings
from luwu.store.values import moment_names

DOCUMENT = Path(__file__).parents[2] / "docs" / "optimizers.md"


def test_a_class_is_all_that_stores_need():
    class Toy(StoreOptimizer):
        kind = "toy"
        order = ("lr",)
        states = ("first", "second", "third")
        same_states = torch.optim.Rprop

    class Tuned(Toy):
        """A subclass of the same kind changes nothing."""

    assert optimizer_of("toy") is Toy
    assert moment_names(Manifest("float32", 1024, (), "toy")) == ("first", "second", "third")
    assert "etas" in _all_settings("toy", {})
    del Toy, Tuned
    gc.collect()
    with pytest.raises(ConfigError, match=r"optimizer: expected one of adagrad, .*found 'toy'"):
        optimizer_of("toy")


def test_every_place_that_names_optimizers_names_all_of_them():
    """The places are those that docs/optimizers.md says to change, and its own table."""
    classes = optimizer_classes()
    assert {kind: (each.__name__, each.__module__) for kind, each in classes.items()} == {
        kind: (entry.class_name, entry.module) for kind, entry in OPTIMIZERS.items()
    }
    assert {each.__name__ for each in classes.values()} <= set(luwu.__all__)
    assert set(re.findall(r"^\| `\w+` \| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)) == set(classes)


def test_the_document_has_the_rates_of_the_table():
    heading, narrow = re.findall(
        r"^\| (?:the model starts from|random values, hidden up to 128) \|.*", DOCUMENT.read_text(), re.MULTILINE
    )
    columns = [re.findall(r"`(\w+)`", column) for column in heading.split("|")[2:-1]]
    rates = [float(cell) for cell in narrow.split("|")[2:-1]]
    told = {kind: rate for kinds, rate in zip(columns, rates, strict=True) for kind in kinds}
    assert told == {kind: entry.rate for kind, entry in OPTIMIZERS.items()}


@pytest.mark.parametrize("kind", sorted(torch_optimizers()))
def test_states_have_the_names_that_torch_gives_them(kind):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch_optimizers()[kind]([parameter])
    parameter.grad = torch.ones(2)
    optimizer.step()
    assert set(optimizer.state[parameter]) == {"step", *optimizer_of(kind).states}
