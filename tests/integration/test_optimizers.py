"""Every optimizer on a real store against torch's, or its published algorithm, across a restart."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.unit.pretrained import build, save
from tests.unit.worker_models import assert_same_state, train
from torch import nn
from torch.optim import lr_scheduler

import luwu
from harness.small_models import Block, Tiny, loss_of
from harness.stored import read_block
from luwu.core.manifest import Manifest
from luwu.errors import ConfigError, ManifestMismatchError, StoreFormatError
from luwu.models.importing import import_pretrained
from luwu.store.opening import open_reader
from luwu.store.upkeep import compact, info
from luwu.store.verifying import verify

MEMORY = 64 << 20


class LionReference(torch.optim.Optimizer):
    """Lion as its authors wrote it down (arXiv 2302.06675, algorithm 2)."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("m", torch.zeros_like(parameter))
                direction = (beta1 * momentum + (1 - beta1) * parameter.grad).sign()
                parameter.sub_(group["lr"] * (direction + group["weight_decay"] * parameter))
                momentum.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


PEERS: dict[str, Any] = {
    "AdamW": torch.optim.AdamW,
    "Adam": torch.optim.Adam,
    "SGD": torch.optim.SGD,
    "Adagrad": torch.optim.Adagrad,
    "Lion": LionReference,
}

CASES = [
    ("AdamW", {"lr": 1e-2}),
    ("Adam", {"lr": 1e-2, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.05}),
    ("Adagrad", {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.05, "initial_accumulator_value": 0.2}),
    ("Lion", {"lr": 1e-3, "weight_decay": 0.3}),
]


def tiny(seed: int = 0) -> Tiny:
    torch.manual_seed(seed)
    return Tiny(depth=2)


def open_model(run: Path, optimizer: Any, session: Any, model: nn.Module | None = None, **options: Any) -> nn.Module:
    return luwu.parallelize(model or tiny(), session, blocks=[Block], optimizer=optimizer, **options)


def groups_of(model: nn.Module, lr: float) -> list[dict[str, Any]]:
    """Matrices as the optimizer has it, the rest at another rate and without decay."""
    parameters = list(model.parameters())
    return [
        {"params": [parameter for parameter in parameters if parameter.dim() > 1]},
        {"params": [parameter for parameter in parameters if parameter.dim() <= 1], "lr": lr / 2, "weight_decay": 0.0},
    ]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_the_losses_and_values_of_the_reference(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    ours, peer = getattr(luwu, name), tiny()
    theirs = PEERS[name](groups_of(peer, settings["lr"]), **settings)
    expected = train(peer, theirs, range(6))
    losses = []
    for steps in (range(3), range(3, 6)):  # a store made, and opened again
        with luwu.open(tmp_path, memory=MEMORY) as session:
            model = open_model(tmp_path, ours, session, tiny(seed=len(losses)))
            losses += train(model, ours(groups_of(model, settings["lr"]), **settings), steps)
            values = luwu.full_state_dict(model)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert_same_state(values, peer.state_dict(), 1e-5)


@pytest.mark.parametrize("name", ["Adam", "SGD", "Adagrad", "Lion"])
def test_bfloat16_parameters_have_a_float32_master(tmp_path: Path, name: str) -> None:
    lr = 1e-2
    peer = tiny()
    masters = [parameter.detach().clone() for parameter in peer.parameters()]
    theirs = PEERS[name](masters, lr=lr)
    peer.bfloat16()
    expected = []
    for step in range(4):
        loss = loss_of(peer, step)
        loss.backward()
        for master, parameter in zip(masters, peer.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        theirs.step()
        with torch.no_grad():
            for master, parameter in zip(masters, peer.parameters(), strict=True):
                parameter.copy_(master)
        expected.append(loss.item())
    ours = getattr(luwu, name)
    with luwu.open(tmp_path, memory=MEMORY) as session:
        model = open_model(tmp_path, ours, session, dtype=torch.bfloat16)
        losses = train(model, ours(model, lr=lr), range(4))
    assert losses == pytest.approx(expected, rel=1e-2)
    found = stored_masters(tmp_path / "store")
    for (key, _), master in zip(peer.named_parameters(), masters, strict=True):
        torch.testing.assert_close(found[key], master.flatten(), rtol=2e-2, atol=2 * lr)


def stored_masters(store: Path) -> dict[str, torch.Tensor]:
    reader, manifest = open_reader([store])
    found = {}
    for number, block in enumerate(manifest.blocks):
        _, states = read_block(reader, number)
        for parameter in block.parameters:
            whole = torch.from_numpy(states[0])
            found[parameter.name] = whole[parameter.offset : parameter.offset + parameter.numel]
    return found


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, gamma=0.3),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=5),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=6),  # momentum, too
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), lr_scheduler.ExponentialLR(optimizer, 0.5)],
        milestones=[2],
    ),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_only_change_the_groups(tmp_path: Path, scheduler: str) -> None:
    def run(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
        schedule, losses = SCHEDULERS[scheduler](optimizer), []
        for step in range(5):
            losses += train(model, optimizer, [step])
            schedule.step()
        return losses

    peer = tiny()
    expected = run(peer, torch.optim.SGD(peer.parameters(), lr=0.1, momentum=0.9))
    with luwu.open(tmp_path, memory=MEMORY) as session:
        model = open_model(tmp_path, luwu.SGD, session)
        assert run(model, luwu.SGD(model, lr=0.1, momentum=0.9)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_of_eight_bits_learn_what_floats_learn(tmp_path: Path, dtype: torch.dtype) -> None:
    results = {}
    for ours in (luwu.AdamW, luwu.AdamW8bit):
        with luwu.open(tmp_path / ours.kind, memory=MEMORY) as session:
            model = open_model(tmp_path, ours, session, dtype=dtype)
            optimizer = ours(luwu.decay_groups(model, 0.1), lr=1e-2)
            results[ours.kind] = [train(model, optimizer, [step % 4])[0] for step in range(40)]
    last = {kind: sum(losses[-4:]) / 4 for kind, losses in results.items()}
    assert last["adamw"] < 0.75 * results["adamw"][0]
    assert last["adamw8bit"] == pytest.approx(last["adamw"], rel=0.02)


def test_states_of_eight_bits_go_on_from_the_same_bits(tmp_path: Path) -> None:
    for name, parts in (("once", [range(6)]), ("often", [range(2), range(2, 3), range(3, 6)])):
        for steps in parts:
            with luwu.open(tmp_path / name, memory="2MiB") as session:
                model = open_model(tmp_path, luwu.AdamW8bit, session, dtype=torch.bfloat16)
                train(model, luwu.AdamW8bit(luwu.decay_groups(model, 0.1), lr=1e-2), steps)
    once, often = stored_masters(tmp_path / "once/store"), stored_masters(tmp_path / "often/store")
    assert all(torch.equal(once[name], often[name]) for name in once)


def test_states_of_eight_bits_take_less_than_half(tmp_path: Path) -> None:
    sizes = {}
    for optimizer in ("adamw", "adamw8bit"):
        manifest = small_manifest(elements=1 << 18, dtype="bfloat16", chunk_elements=1 << 17, optimizer=optimizer)
        with luwu.open(tmp_path / optimizer, memory=MEMORY) as session:
            session.attach(manifest)
        elements = sum(block.elements for block in manifest.blocks)
        sizes[optimizer] = (tmp_path / optimizer / "store/version-0.luwu").stat().st_size / elements
    assert sizes["adamw"] == pytest.approx(2 + 10, rel=0.05)
    assert sizes["adamw8bit"] == pytest.approx(2 + 4, rel=0.05)


def test_an_imported_store_is_for_the_optimizer_that_was_named(tmp_path: Path) -> None:
    save("gpt2", tmp_path / "in")
    store = tmp_path / "store"
    import_pretrained(tmp_path / "in", [store], dtype="bfloat16", optimizer="adamw8bit")
    with luwu.open(tmp_path / "run", stores=[store], memory=MEMORY) as session:
        model = luwu.parallelize(build("gpt2"), session, optimizer=luwu.AdamW8bit, dtype=torch.bfloat16)
        optimizer, tokens = luwu.AdamW8bit(model), torch.arange(24).reshape(2, 12)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    found = info([store])
    assert (found.optimizer, found.optimizer_states) == ("adamw8bit", ("master", "exp_avg", "exp_avg_sq"))
    assert compact([store]) > 0
    report = verify([store])
    assert (report.step, report.damaged) == (1, 0)


def test_a_store_of_another_optimizer_is_refused_by_both_names(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory=MEMORY) as session:
        train(model := open_model(tmp_path, luwu.Lion, session), luwu.Lion(model), range(1))
    with luwu.open(tmp_path, memory=MEMORY) as session:
        with pytest.raises(ManifestMismatchError, match=r"keeps the states of lion.*parallelized for adam;.*nothing"):
            open_model(tmp_path, luwu.Adam, session)
    with luwu.open(tmp_path, memory=MEMORY) as session:
        model = open_model(tmp_path, luwu.Lion, session)
        assert session.step == 1
        with pytest.raises(ConfigError, match=r"expected lion, whose states .* found sgd; .*optimizer=luwu\.SGD"):
            luwu.SGD(model)
        train(model, luwu.Lion(model), range(1))


def test_a_store_from_before_there_was_a_choice_is_adamws(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory=MEMORY) as session:
        NumpyWorker(session, small_manifest()).step()
    path = tmp_path / "store/manifest.json"
    document = json.loads(path.read_text())
    assert document["format"] == 1  # that older versions read
    del document["manifest"]["optimizer"], document["crc32c"]
    path.write_text(json.dumps(document))
    with luwu.open(tmp_path, memory=MEMORY) as session:
        assert NumpyWorker(session, small_manifest()).step()
        assert session.step == 2
    with luwu.open(tmp_path, memory=MEMORY) as session, pytest.raises(ManifestMismatchError, match="states of adamw"):
        session.attach(small_manifest(optimizer="adam"))


def test_a_store_of_another_optimizer_does_not_pass_for_adamws(tmp_path: Path) -> None:
    """The files tell another optimizer where the manifest was edited, even where both keep as many states."""
    with luwu.open(tmp_path, memory=MEMORY) as session:
        NumpyWorker(session, small_manifest(optimizer="adam")).step()
    path = tmp_path / "store/manifest.json"
    document = json.loads(path.read_text())
    assert document["format"] == 2
    document["manifest"]["optimizer"] = "adamw"
    del document["crc32c"]  # as somebody does who edits it
    path.write_text(json.dumps(document))
    with luwu.open(tmp_path, memory=MEMORY) as session, pytest.raises(luwu.errors.StoreCorruptError, match="optimizer"):
        session.attach(small_manifest())


def test_what_no_optimizer_can_work_with(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError):
        Manifest.from_json("{}")
    manifest = dataclasses.replace(small_manifest(), optimizer="adamax")
    with luwu.open(tmp_path, memory=MEMORY) as session:
        with pytest.raises(ConfigError, match="optimizer is 'adamax'; expected one of adamw, adam, sgd"):
            session.attach(manifest)
    with luwu.open(tmp_path, memory=MEMORY) as session:
        for wrong in ("lion", torch.optim.Adam):
            with pytest.raises(ConfigError, match=r"optimizer class of luwu such as luwu\.Lion"):
                open_model(tmp_path, wrong, session)
        model = open_model(tmp_path, luwu.SGD, session)
        with pytest.raises(ConfigError, match="nesterov of parameter group 0: expected a momentum above 0"):
            luwu.SGD(model, nesterov=True)
        with pytest.raises(ConfigError, match="nesterov of parameter group 0"):
            luwu.SGD(model, momentum=0.9, dampening=0.1, nesterov=True)
        with pytest.raises(ConfigError, match="momentum of parameter group 0: expected a finite number from 0"):
            luwu.SGD(model, momentum=-0.1)
