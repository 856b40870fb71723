"""Training on a device: real servers, real memory that is shared and locked, and the twin in the place of a GPU."""

from __future__ import annotations

import copy
import gc
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.integration.udp import in_threads, remote, udp_server
from tests.simulated_device import LIBRARY, Twin, compute_on_device, the_twin
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import run_workers, train
from torch import Tensor, nn

import luwu
from harness.network.namespaces import wait_until
from harness.small_models import Tiny, loss_of
from luwu.optim.adamw import AdamW
from luwu.session.session import Session
from luwu.worker.device_staging import DeviceStaging
from luwu.worker.flatten import Block
from luwu.worker.parallelize import full_state_dict, parallelize

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the native tests are not built: run make test")


@pytest.fixture
def twin() -> Iterator[Twin]:
    twin = the_twin()
    yield twin
    gc.collect()
    assert twin.findings() == []


@pytest.fixture
def on_device(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let models that are parallelized from here on compute on the device."""
    return partial(compute_on_device, monkeypatch)


def trained(folder: Path, model: nn.Module, steps: range, **options) -> tuple[list[float], dict[str, Tensor]]:
    with luwu.open(folder, memory="64MiB") as session:
        model = copy.deepcopy(model)
        parallelize(model, session, **options)
        return train(model, AdamW(model, lr=1e-2), steps), full_state_dict(model)


def assert_same(found: tuple[list[float], dict[str, Tensor]], expected: tuple[list[float], dict[str, Tensor]]) -> None:
    assert found[0] == expected[0]
    for name, values in expected[1].items():
        assert torch.equal(found[1][name], values), name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": torch.bfloat16},
        {"micro_batch_size": 1},
        {"dtype": torch.bfloat16, "micro_batch_size": 1},
        {"checkpoint": False},
        {"block_dtypes": {"h.0": torch.bfloat16}},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_fresh_store_and_a_resumed_one_train_as_on_the_host(tmp_path, on_device, options, tied):
    # The server takes the memory that first values came through back from the system: a device that had locked it
    # before would go on writing gradients to pages that nobody reads.
    torch.manual_seed(0)
    model = Tiny(tied=tied)
    expected = [trained(tmp_path / "host", model, steps, **options) for steps in (range(3), range(3, 6))]
    on_device()
    for steps, result in zip((range(3), range(3, 6)), expected, strict=True):
        assert_same(trained(tmp_path / "device", model, steps, **options), result)


def test_nothing_stays_locked_after_a_session_and_two_share_a_process(tmp_path, on_device, twin):
    model = Tiny()
    expected = trained(tmp_path / "host", model, range(2))
    on_device()
    gc.collect()
    before = twin.registered_bytes, twin.device_bytes
    for name in ("first", "second"):
        assert_same(trained(tmp_path / name, model, range(2)), expected)
        gc.collect()
        assert (twin.registered_bytes, twin.device_bytes) == before
    with luwu.open(tmp_path / "third", memory="64MiB") as one, luwu.open(tmp_path / "fourth", memory="64MiB") as two:
        models = [copy.deepcopy(model) for _ in range(2)]
        for own, session in zip(models, (one, two), strict=True):
            parallelize(own, session)
        losses = [train(own, AdamW(own, lr=1e-2), range(2)) for own in models]
        assert losses == [expected[0]] * 2


def test_only_what_the_budget_counts_is_locked(tmp_path, on_device, twin):
    on_device()
    gc.collect()
    before = twin.registered_bytes
    with luwu.open(tmp_path / "run", memory="64MiB") as session:
        model = nn.Linear(256, 256)
        parallelize(model, session, dtype=torch.bfloat16)
        endpoint = session.endpoint  # first values are float32, and pass before anything is locked
        assert endpoint.gradient_bytes < endpoint.arena_bytes
        assert twin.registered_bytes - before == len(endpoint.window) + endpoint.gradient_bytes


def test_the_device_holds_a_few_blocks_at_any_depth(on_device, twin):
    on_device()
    held = []
    for depth in (8, 16):
        gc.collect()
        before = twin.device_bytes
        model = Tiny(depth)
        parallelize(model, FakeSession())
        train(model, AdamW(model, lr=1e-2), range(2))
        held.append(twin.device_bytes - before)
        del model
    assert held[0] == held[1]


def test_a_forked_child_may_drop_its_copy_of_a_model_on_a_device(on_device):
    on_device()
    model = Tiny()
    parallelize(model, FakeSession())
    optimizer = AdamW(model, lr=1e-2)
    train(model, optimizer, range(1))
    child = os.fork()
    if child == 0:
        del model, optimizer
        gc.collect()  # would join threads that only the parent has
        os._exit(7)
    ended: list[int] = []
    try:
        wait_until(lambda: ended.extend(os.waitpid(child, os.WNOHANG)) or ended[-2] == child, "the child to end")
    finally:
        if child not in ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended[-1]) == 7
    train(model, optimizer, range(1, 3))


@pytest.mark.timeout(120)  # a pull that one worker does not make waits for ever
@pytest.mark.parametrize("device_memory", [None, "40KiB"])
def test_workers_over_udp_pull_together_though_places_are_given_back_late(tmp_path, on_device, twin, device_memory):
    torch.manual_seed(0)
    model = Tiny(1)  # what an evaluation used last, a step uses first

    def losses(folder: Path) -> list[list[float]]:
        models = [copy.deepcopy(model) for _ in range(2)]

        def work(rank: int) -> list[float]:
            own, found = models[rank], []
            with remote(server.url, 2)(rank) as session:
                parallelize(own, session)
                optimizer = AdamW(own, lr=1e-2)
                for step in range(6):
                    if rank == 0:  # pulls alone, just before all pull the same blocks
                        with torch.no_grad():
                            loss_of(own, 100 + step)
                    loss = loss_of(own, 2 * step + rank)
                    loss.backward()
                    optimizer.step()
                    found.append(loss.item())
            return found

        with udp_server(folder, 2) as server:
            return in_threads(2, work)

    expected = losses(tmp_path / "host")
    on_device(device_memory=device_memory)
    with twin.late(20_000):
        assert losses(tmp_path / "device") == expected


class TestCtrlC:
    """It comes while a block that stayed on the device is given back."""

    @pytest.fixture
    def interrupt(self, monkeypatch) -> Callable[[], None]:
        """Interrupt the next release, once the block is given back."""
        release = DeviceStaging.release

        def interrupted(staging: DeviceStaging, block: Block) -> None:
            monkeypatch.setattr(DeviceStaging, "release", release)
            release(staging, block)
            raise KeyboardInterrupt

        return lambda: monkeypatch.setattr(DeviceStaging, "release", interrupted)

    @pytest.fixture
    def keeping(self, tmp_path, on_device) -> Iterator[tuple[Tiny, Session, AdamW]]:
        """A session whose model stays on the device."""
        on_device(device_memory="1MiB")
        with luwu.open(tmp_path, memory="64MiB") as session:
            model = parallelize(Tiny(), session)
            yield model, session, AdamW(model, lr=1e-2)

    def test_because_all_pull_what_was_pulled_alone(self, keeping, interrupt):
        model, _, optimizer = keeping
        with torch.no_grad():
            expected = loss_of(model, 0)
            interrupt()
        with pytest.raises(KeyboardInterrupt):
            loss_of(model, 0)
        with torch.no_grad():
            assert loss_of(model, 0) == expected
        assert train(model, optimizer, range(1)) == [expected.item()]

    def test_because_a_step_has_changed_it(self, keeping, interrupt):
        model, session, optimizer = keeping
        loss_of(model, 0).backward()
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        assert session.step == 1
        loss_of(model, 1).backward()
        optimizer.step()
        assert session.step == 2


def test_a_step_that_fails_in_backward_is_rolled_back_and_made_again(tmp_path, on_device):
    model = Tiny()
    expected = trained(tmp_path / "host", model, range(2))
    on_device()
    with luwu.open(tmp_path / "device", memory="64MiB") as session:
        parallelize(model, session)
        optimizer = AdamW(model, lr=1e-2)

        def fail(_: Tensor) -> None:
            raise ValueError("on purpose")

        for _ in range(3):
            loss = loss_of(model, 0)
            loss.grad_fn.register_prehook(lambda gradients: fail(gradients[0]))
            with pytest.raises(ValueError, match="on purpose"):
                loss.backward()
            hidden = loss_of(model, 0)  # and one that fails when some gradients are pushed
            next_to_last = model.h[1].up.bias
            handle = next_to_last.register_hook(fail)
            with pytest.raises(ValueError, match="on purpose"):
                hidden.backward()
            handle.remove()
        assert train(model, optimizer, range(2)) == expected[0]


def test_two_workers_on_devices_train_as_two_on_the_host(tmp_path, on_device):
    def losses_of(folder: Path) -> dict[int, list[float]]:
        losses: dict[int, list[float]] = {}
        torch.manual_seed(0)
        models = [Tiny(), Tiny()]  # beforehand: threads share torch's generator

        def work(session: Session) -> None:
            model = parallelize(models[session.rank], session)
            optimizer = AdamW(model, lr=1e-2)
            losses[session.rank] = []
            for step in range(3):
                loss = loss_of(model, step * 2 + session.rank)
                loss.backward()
                optimizer.step()
                losses[session.rank].append(loss.item())

        run_workers(folder, work)
        return losses

    expected = losses_of(tmp_path / "host")
    on_device()
    assert losses_of(tmp_path / "device") == expected


ROOMS = pytest.mark.parametrize("room", ["16KiB", "48KiB", "1GiB"])


@ROOMS
@pytest.mark.parametrize("options", [{}, {"checkpoint": False}, {"micro_batch_size": 1}], ids=str)
def test_blocks_that_stay_on_the_device_train_as_on_the_host(tmp_path, on_device, options, room):
    torch.manual_seed(0)
    model = Tiny(6)
    model.h[1].requires_grad_(False)
    expected = [trained(tmp_path / "host", model, steps, **options) for steps in (range(3), range(3, 6))]
    on_device()
    for steps, result in zip((range(3), range(3, 6)), expected, strict=True):
        found = trained(tmp_path / "device", model, steps, device_memory=room, **options)
        assert_same(found, result)


def test_a_block_that_stays_is_pulled_once_a_step_and_a_frozen_one_once(tmp_path, on_device):
    on_device()
    model = Tiny()
    model.h[0].requires_grad_(False)
    frozen = nbytes(model.h[0])
    with luwu.open(tmp_path, memory="64MiB") as session:
        parallelize(model, session, device_memory="1GiB")
        optimizer = AdamW(model, lr=1e-2)
        once = pulled_by(session, lambda: train(model, optimizer, range(1)))
        later = pulled_by(session, lambda: train(model, optimizer, range(1, 2)))
        assert frozen < once - later < frozen + PAGE
        assert pulled_by(session, lambda: evaluate(model)) == later
        assert pulled_by(session, lambda: evaluate(model)) == 0
        # Pulled for an evaluation, which other workers may not have made: pulled again with them.
        assert pulled_by(session, lambda: train(model, optimizer, range(2, 3))) == later


def test_frozen_blocks_may_be_larger_than_the_memory_for_gradients(tmp_path, on_device):
    def adapted() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 4, bias=False)) for _ in range(2)]
        for layer in layers:
            layer[0].requires_grad_(False)
        return nn.ModuleList(layers)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = adapted()

        def forward(self, x: Tensor) -> Tensor:
            return sum(layer(x).square().mean() for layer in self.h)

    def losses(folder: Path) -> list[float]:
        model, rows = Both(), torch.ones(2, 512)
        with luwu.open(folder, memory="64MiB") as session:
            parallelize(model, session, blocks=["h.*"])
            assert session.endpoint.gradient_bytes < model.h[0][0].weight.nbytes
            return train(model, AdamW(model, lr=1e-2), range(3), lambda module, _: module(rows))

    expected = losses(tmp_path / "host")
    on_device()
    assert losses(tmp_path / "device") == expected


def test_workers_that_keep_blocks_may_evaluate_alone_and_fail_alone(tmp_path, on_device):
    def losses_of(folder: Path, disturbed: bool, **options: str) -> dict[int, list[float]]:
        losses: dict[int, list[float]] = {}
        torch.manual_seed(0)
        models = [Tiny(6), Tiny(6)]

        def work(session: Session) -> None:
            model = parallelize(models[session.rank], session, **options)
            optimizer = AdamW(model, lr=1e-2)
            losses[session.rank] = []
            for step in range(4):
                if disturbed and session.rank == step % 2:
                    evaluate(model)
                if disturbed and step == 2:
                    give_up(model, at=0 if session.rank == 0 else 4)
                loss = loss_of(model, step * 2 + session.rank)
                loss.backward()
                optimizer.step()
                losses[session.rank].append(loss.item())

        run_workers(folder, work)
        return losses

    expected = losses_of(tmp_path / "host", False)
    on_device()
    assert losses_of(tmp_path / "device", True, device_memory="40KiB") == expected


PAGE = 4096


def nbytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def evaluate(model: nn.Module) -> None:
    with torch.no_grad():
        loss_of(model, 0)


def pulled_by(session: Session, work: Callable[[], object]) -> int:
    before = session.endpoint.stats()["bytes_pulled"]
    work()
    return session.endpoint.stats()["bytes_pulled"] - before


def give_up(model: nn.Module, at: int) -> None:
    """Fail in a forward, when it comes to this layer; the next forward rolls the attempt back."""

    def fail(*_: object) -> None:
        raise ValueError("on purpose")

    handle = model.h[at].register_forward_hook(fail)
    with pytest.raises(ValueError, match="on purpose"):
        loss_of(model, 0)
    handle.remove()
