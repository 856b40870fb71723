"""Activation offload: the same bits, memory that does not grow with depth, and nothing left on the disk."""

from __future__ import annotations

import copy
import errno
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import assert_same_state, train
from torch import Tensor, nn

import luwu
from harness.small_models import Tiny, loss_of, tokens
from luwu.errors import ConfigError, StepOrderError, StoreError, StoreSpaceError
from luwu.optim.adamw import AdamW
from luwu.worker import offload_disk
from luwu.worker.parallelize import full_state_dict, parallelize


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def trained(model: nn.Module, loss=loss_of, **options) -> tuple[list[float], dict[str, Tensor]]:
    model = copy.deepcopy(model)
    parallelize(model, FakeSession(), **options)
    losses = train(model, AdamW(model, lr=1e-2), range(3), loss)
    return losses, full_state_dict(model)


def assert_same_bits(model: nn.Module, folder: Path, loss=loss_of, **options) -> None:
    plain, offloaded = trained(model, loss, **options), trained(model, loss, offload=folder, **options)
    assert plain[0] == offloaded[0]
    assert_same_state(plain[1], offloaded[1], 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("micro_batch_size", [None, 1, 3])
def test_the_same_bits_as_without(tmp_path, dtype, micro_batch_size):
    assert_same_bits(Tiny(depth=4, dropout=0.2), tmp_path, dtype=dtype, micro_batch_size=micro_batch_size)


class Turned(nn.Module):
    """Its inputs lie in memory in another order than their dimensions, with gaps, or are wanted more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, first: Tensor, mask: Tensor) -> Tensor:
        return torch.sin(self.linear(x.transpose(1, 2))).transpose(1, 2) * mask + first


class TurnedTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.layers = nn.ModuleList(Turned() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first = self.embed(x).transpose(1, 2)
        wide, mask = torch.cat([first, first], dim=1), torch.rand(1, 6, 1)
        x = wide[:, ::2]
        for layer in self.layers:
            x = layer(x, first, mask)
        return x.square().mean()


def test_inputs_of_any_layout(tmp_path):
    assert_same_bits(TurnedTower(), tmp_path, lambda model, step: model(torch.randn(3, 5, 4)))


def room(folder: Path) -> int:
    """Bytes in files of this process in a folder, with names or without, when all is written that was to be."""
    for disk in [each for each in gc.get_objects() if type(each) is offload_disk.DiskShelf]:
        disk._thread.submit(int).result()  # its one thread does this after what came before
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.readlink()).startswith(str(folder)):
                found += os.fstat(int(link.name)).st_size
        except OSError:
            pass  # closed meanwhile
    return found


def test_inputs_are_on_the_disk_between_forward_and_backward_alone(tmp_path):
    model, session = Tiny(depth=4), FakeSession()
    parallelize(model, session, offload=tmp_path / "new", micro_batch_size=2)
    optimizer = AdamW(model)
    loss = loss_of(model, 0)
    assert room(tmp_path) > 0
    assert list((tmp_path / "new").iterdir()) == []  # the file has no name
    loss.backward()
    assert room(tmp_path) == 0
    optimizer.step()
    loss_of(model, 1)
    loss_of(model, 2)  # gives the one before up
    one = room(tmp_path)
    optimizer.zero_grad()
    model(tokens(0)).sum().backward()
    optimizer.step()
    loss_of(model, 1)
    assert room(tmp_path) == one
    del model, optimizer, loss, session
    gc.collect()
    assert room(tmp_path) == 0


def test_a_file_system_without_nameless_files(tmp_path, monkeypatch):
    real = os.open

    def refuse(path, flags, *rest, **named):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    assert_same_bits(Tiny(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_several_passes_of_one_step(tmp_path):
    states = []
    for options in ({}, {"offload": tmp_path}):
        torch.manual_seed(0)
        model = Tiny()
        parallelize(model, FakeSession(), **options)
        optimizer = AdamW(model)
        with luwu.no_sync(model):
            loss_of(model, 0).backward()
            loss_of(model, 1).backward()
        optimizer.step()
        states.append(full_state_dict(model))
    assert_same_state(*states, 0.0)


def test_a_full_disk_is_said_and_the_next_step_works(tmp_path, monkeypatch):
    model, peer = Tiny(depth=5), Tiny(depth=5)
    peer.load_state_dict(model.state_dict())
    parallelize(model, FakeSession(), offload=tmp_path)
    parallelize(peer, FakeSession())
    optimizer, real = AdamW(model), os.pwrite

    def full(number: int, data: memoryview, offset: int) -> int:
        if offset > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(number, data[:100], offset)  # short writes are gone on with

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreSpaceError, match=rf"offload: expected room .* in {tmp_path}.* smaller batch"):
        loss_of(model, 0).backward()
    monkeypatch.setattr(os, "pwrite", real)
    assert train(model, optimizer, range(2)) == train(peer, AdamW(peer), range(2))
    assert_same_state(full_state_dict(model), full_state_dict(peer), 0.0)


def test_a_file_that_cannot_be_read_is_said(tmp_path, monkeypatch):
    model = Tiny()
    parallelize(model, FakeSession(), offload=tmp_path)
    AdamW(model)
    loss = loss_of(model, 0)
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(StoreError, match=r"offload: cannot read .* the file has ended"):
        loss.backward()


def test_backward_after_its_activations_are_gone(tmp_path):
    model = Tiny()
    parallelize(model, FakeSession(), offload=tmp_path)
    AdamW(model)
    first = loss_of(model, 0)
    loss_of(model, 1)
    with pytest.raises(StepOrderError, match="earlier forward"):
        first.backward()


def test_what_cannot_work_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for options, message in (
        ({"offload": "host"}, "expected 'host' for device cuda, found device cpu"),
        ({"offload": tmp_path, "checkpoint": False}, "expected checkpoint=True"),
        ({"offload": tmp_path / "file"}, "expected a folder to write activations to"),
    ):
        with pytest.raises(ConfigError, match=message):
            parallelize(Tiny(), FakeSession(), **options)


CHILD = """
import sys
from pathlib import Path
import torch
from torch import nn
from tests.unit.fake_session import FakeSession
from luwu.optim.adamw import AdamW
from luwu.worker.parallelize import parallelize

folder, die = sys.argv[1], sys.argv[2:] == ["die"]

def peak(offload):
    model = nn.Sequential(nn.Linear(8, 64), *(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(26)))
    parallelize(model, FakeSession(), blocks=[nn.Sequential], offload=offload, micro_batch_size=1024)
    AdamW(model)
    loss = model(torch.randn(16384, 8)).square().mean()  # 4 MiB between blocks
    if die:
        print("ready", flush=True)
        sys.stdin.read()
    loss.backward()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) // 1024

print(peak(folder), peak(None))  # the smaller one first, because a process has but one peak
"""


def start(folder: Path, *rest: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), *rest],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        # glibc's malloc keeps holes unless told not to (docs/decisions/0004)
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip


def test_a_workers_memory_is_without_the_inputs_of_its_blocks(tmp_path):
    offloaded, kept = map(int, start(tmp_path).communicate()[0].split())
    assert kept - offloaded > 80  # MiB, of 25 inputs of 4 MiB


def test_nothing_is_left_by_a_worker_that_is_killed(tmp_path):
    child = start(tmp_path, "die")
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_holds_the_model_up(tmp_path, monkeypatch):
    """No more tensors wait to be written than said, however slow the disk is."""
    waiting = []
    put = offload_disk.DiskShelf.put

    def counted(shelf: offload_disk.DiskShelf, data: Tensor) -> offload_disk.Place:
        place = put(shelf, data)
        waiting.append(len(shelf._writing))
        return place

    monkeypatch.setattr(offload_disk.DiskShelf, "put", counted)
    trained(Tiny(depth=6), offload=tmp_path)
    assert max(waiting) == 2
