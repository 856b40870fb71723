"""The device that is chosen, and what a GPU needs other than a CPU does, as far as that shows without one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.unit.fake_session import FakeSession
from torch import Tensor, nn

from harness.small_models import Tiny
from luwu.errors import ConfigError
from luwu.worker.devices import choose_device
from luwu.worker.flatten import flatten
from luwu.worker.offload_disk import DiskShelf
from luwu.worker.parallelize import parallelize
from luwu.worker.sums import GradientSums
from luwu.worker.tiled_loss import default_tile_rows


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let torch find four GPUs, the first of which is the current one; nothing can compute there."""
    state = SimpleNamespace(current=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: state.current)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return state


def test_each_rank_of_a_host_has_a_gpu_of_its_own(four_gpus, monkeypatch):
    assert choose_device("cuda").torch == torch.device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("cuda").torch == torch.device("cuda:3")
    assert choose_device("cuda:1").torch == torch.device("cuda:1")
    four_gpus.current = 2  # by torch.cuda.set_device
    assert choose_device(torch.device("cuda")).torch == torch.device("cuda:2")


def test_a_rank_that_sees_one_gpu_alone_has_it(four_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("cuda").torch == torch.device("cuda:0")


def test_a_device_that_is_not_there(four_gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(ConfigError, match="expected cuda:0 to cuda:3, found cuda:4; start as many processes"):
        choose_device("cuda")
    for wrong in ("mps", "tpu?", "cuda:x"):
        with pytest.raises(ConfigError, match="use device='cpu'"):
            choose_device(wrong)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="cuda where torch finds one, found cuda"):
        choose_device("cuda")


def test_initialising_leaves_the_generators_of_gpus_alone(monkeypatch):
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with torch.device("meta"):
        model = Tiny()
    parallelize(model, FakeSession())
    assert seeds == []


def test_gradients_of_several_backward_passes_are_kept_on_the_host(monkeypatch):
    # Meta stands in for the GPU: torch refuses to add or copy its tensors to others, and what comes from there is ones.
    moved = Tensor.to

    def to(tensor: Tensor, where: torch.device) -> Tensor:
        return torch.ones(tensor.shape) if tensor.is_meta and where.type == "cpu" else moved(tensor, where)

    monkeypatch.setattr(Tensor, "to", to)
    (unit,) = flatten(nn.Linear(3, 2), [])
    block = unit.blocks[0]
    sums = GradientSums(torch.device("meta"))
    for _ in range(3):
        for slot, parameter in enumerate(block.slots):
            sums.add(block, slot, torch.empty(parameter.parameter.shape, device="meta"))
        sums.keep(block)
    assert [view.tolist() for view in sums._kept[block.index].views] == [[[3.0] * 3] * 2, [3.0] * 2]
    assert [(slot, view.device.type) for slot, view in sums.take(block)] == [(0, "meta"), (1, "meta")]


def test_a_tensor_that_was_written_before_it_is_put_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # What goes to the disk from a GPU is a copy, whose count of writes is its own.
    copied = Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda self: copied(self).clone())
    shelf = DiskShelf(tmp_path, torch.device("cpu"))
    data = torch.zeros(16, dtype=torch.uint8)
    data.add_(3)
    place = shelf.put(data)
    data.add_(1)  # the copy stays as it is
    assert shelf.fetch(place)().tolist() == [3] * 16


@pytest.mark.parametrize("classes", [1_000, 32_000, 128_256])
def test_tiles_on_a_gpu_move_the_weight_a_few_times(classes):
    # Each tile reads the weight twice (bfloat16) and its gradient once, and writes that (float32): 12 bytes an element.
    width, tokens = 4096, 16_384
    tiles = -(-tokens // default_tile_rows(torch.device("cuda"), classes))
    assert 12 * classes * width * tiles < 110e9  # at tiles for a CPU's cache, 1.6 TB for the largest
    assert 4 * classes * default_tile_rows(torch.device("cuda"), classes) <= 512 << 20
    assert 4 * classes * default_tile_rows(torch.device("cpu"), classes) <= 32 << 20
