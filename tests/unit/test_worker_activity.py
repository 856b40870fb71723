"""A worker's activity, as another thread sees it, through the phases of a step."""

from __future__ import annotations

import gc

import pytest
import torch
from tests.unit.fake_session import FakeSession
from torch import Tensor

import luwu
from harness.small_models import Tiny, loss_of
from luwu.core.progress import Activity, WorkerPhase
from luwu.optim.adamw import AdamW
from luwu.worker.parallelize import parallelize


class Seen(FakeSession):
    """A session that looks at the worker's activity whenever it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, Activity]] = []

    def note(self, when: str) -> Activity:
        activity = self.look()
        assert activity is not None
        self.seen.append((when, activity))
        return activity


@pytest.fixture
def session() -> Seen:
    return Seen()


@pytest.fixture
def model(session: Seen) -> Tiny:
    model = Tiny()
    for index, block in enumerate(model.h):
        block.up.register_forward_hook(lambda module, inputs, output, index=index: look_at(output, session, index))
    return parallelize(model, session)


def look_at(output: Tensor, session: Seen, index: int) -> None:
    session.note(f"{index}")


def test_phases_and_blocks_of_a_step(session: Seen, model: Tiny) -> None:
    optimizer = AdamW(model, lr=1e-2)
    assert session.note("before") == Activity()
    loss = loss_of(model, 0)
    forward = [(each.phase, each.block) for when, each in session.seen[1:]]
    assert forward == [(WorkerPhase.FORWARD, f"h.{index}") for index in range(3)]
    del session.seen[:]
    loss.backward()
    backward = [(each.phase, each.block) for _, each in session.seen]
    assert backward == [(WorkerPhase.BACKWARD, f"h.{index}") for index in (2, 1, 0)]
    pushed = [each.pushed for _, each in session.seen]
    assert pushed == sorted(set(pushed))  # one more with each block
    after = session.note("after")
    assert (after.phase, after.pushed) == (WorkerPhase.AFTER_BACKWARD, len(session.store.blocks))
    optimizer.step()
    assert session.note("between").phase is WorkerPhase.BETWEEN_STEPS
    loss_of(model, 1)
    assert session.note("next").pushed == 0
    assert 0 < session.note("next").acquired < after.acquired


def test_a_worker_that_waits_for_the_steps_end_has_voted(session: Seen, model: Tiny, monkeypatch) -> None:
    optimizer = AdamW(model, lr=1e-2)
    loss_of(model, 0).backward()
    wait = session.endpoint.wait
    during: list[WorkerPhase] = []

    def look_and_wait(handle: int) -> int:
        during.append(session.note("waits").phase)
        return wait(handle)

    monkeypatch.setattr(session.endpoint, "wait", look_and_wait)
    optimizer.step()
    assert during[-1] is WorkerPhase.ENDING


def test_passes_whose_gradients_are_kept_push_nothing(session: Seen, model: Tiny) -> None:
    optimizer = AdamW(model, lr=1e-2)
    with luwu.no_sync(model):
        loss_of(model, 0).backward()
    kept = session.note("kept")
    assert (kept.phase, kept.pushed) == (WorkerPhase.AFTER_BACKWARD, 0)
    loss_of(model, 1).backward()
    assert session.note("last").pushed == len(session.store.blocks)
    optimizer.step()


def test_a_thread_that_asks_does_not_keep_the_model(session: Seen) -> None:
    model = parallelize(Tiny(), session)
    with torch.no_grad():
        model(torch.zeros(1, 2, dtype=torch.long))
    assert session.look() is not None
    del model
    gc.collect()
    assert session.look() is None
