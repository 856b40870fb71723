"""Blocks that stay on the device: which, how long, and that all workers go on to pull the same."""

import random

import pytest
import torch
from tests.unit.test_worker_outer import wide
from torch import nn

from luwu.errors import ConfigError
from luwu.worker.devices import Device
from luwu.worker.flatten import Block
from luwu.worker.kept import KeptBlocks, choose_kept
from luwu.worker.layout import lay_out
from luwu.worker.window import Window

BLOCKS, CHOSEN, STEPS = 6, 4, 12


def units_of(layers: int = 4, frozen: int = 2):
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(layers)))
    for layer in list(model)[:frozen]:
        layer.requires_grad_(False)
    return lay_out(model, [nn.Linear], torch.float32, None)


def test_blocks_that_save_most_pulls_come_first_and_of_these_the_last():
    units = units_of()
    first, second, third, last = (unit.blocks[0] for unit in units[1:])
    assert choose_kept(units, 0) == []
    assert choose_kept(units, first.nbytes * 2 - 1) == [second]
    assert choose_kept(units, first.nbytes * 3) == [second, first, last]
    assert choose_kept(units, 1 << 30)[:4] == [second, first, last, third]


def test_tables_and_heads_which_a_step_pulls_once_come_behind_layers():
    units = lay_out(wide(), None, torch.float32, None)
    names = [block.name for block in choose_kept(units, 1 << 30)]
    assert names == ["h.2", "h.1", "h.0", "head", "embed", "<root>"]


def test_a_cpu_has_no_memory_of_its_own():
    assert Device(torch.device("cpu")).room_for_blocks(None) == 0
    with pytest.raises(ConfigError, match=r"device_memory: expected None with device='cpu'.*found '1GiB'"):
        Device(torch.device("cpu")).room_for_blocks("1GiB")


class Store:
    """The values of blocks, by the number of the step that wrote them."""

    def __init__(self, blocks: list[Block]) -> None:
        self.values = {block.index: 0 for block in blocks}


class Worker:
    """A staging that notes the pulls of all workers, and gives the values that it pulled."""

    device = torch.device("cpu")

    def __init__(self, store: Store, kept: list[Block]) -> None:
        self.store = store
        self.pulls: list[int] = []
        self.on_device: dict[int, int] = {}
        self.window = Window(self, KeptBlocks(kept))

    def request(self, block: Block, *, alone: bool) -> None:
        assert block.index not in self.on_device, "asked for and never given back"
        self.on_device[block.index] = self.store.values[block.index]
        if not alone:
            self.pulls.append(block.index)

    def take(self, block: Block) -> torch.Tensor:
        return torch.full((block.elements,), float(self.on_device[block.index]))

    def release(self, block: Block) -> None:
        del self.on_device[block.index]

    def use(self, block: Block, *, alone: bool) -> None:
        self.window.request(block, alone=alone)
        assert self.window.take(block).flat[0] == self.store.values[block.index], "values of an earlier step"
        self.window.release(block)


@pytest.mark.parametrize("seed", range(50))
def test_workers_pull_the_same_and_never_use_old_values(seed):
    chance = random.Random(seed)
    blocks = [block for unit in units_of(BLOCKS) for block in unit.blocks]
    store = Store(blocks)
    kept = chance.sample(blocks, CHOSEN)
    workers = [Worker(store, kept) for _ in range(3)]
    for step in range(1, STEPS):
        for worker in workers:
            worker.window.begin_attempt()
        ends = [chance.randrange(2 * len(blocks)) for _ in workers] if chance.random() < 0.3 else None
        for number, worker in enumerate(workers):
            passes = [*blocks, *reversed(blocks)]
            for block in passes if ends is None else passes[: ends[number]]:
                while chance.random() < 0.3:
                    worker.use(chance.choice(blocks), alone=True)
                worker.use(block, alone=False)
                if chance.random() < 0.1:  # asked for ahead, and not taken
                    worker.window.request(block, alone=True)
                    worker.window.release(block)
        committed = ends is None
        if committed:
            for block in blocks:
                if block.trainable:
                    store.values[block.index] = step
        for worker in workers:
            worker.window.end_attempt(committed=committed)
        assert not committed or workers[0].pulls == workers[1].pulls == workers[2].pulls
        for worker in workers:
            worker.pulls.clear()
        while chance.random() < 0.5:
            chance.choice(workers).use(chance.choice(blocks), alone=True)
    for worker in workers:
        assert worker.on_device.keys() <= {block.index for block in kept}
