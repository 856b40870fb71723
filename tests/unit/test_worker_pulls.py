"""Over UDP all workers must pull the same blocks in the same order within a step, whatever one of them does besides."""

import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import train

from harness.small_models import Tiny, loss_of
from luwu.optim.adamw import AdamW
from luwu.worker.parallelize import parallelize


class Worker:
    """A model, and what it pulled together with others."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Tiny()
        self.session = FakeSession()
        parallelize(self.model, self.session)
        self.optimizer = AdamW(self.model, lr=1e-2)

    def pulls(self, steps: range) -> list[int]:
        """Return the blocks that some steps pull together with the other workers."""
        self.session.endpoint.together.clear()
        train(self.model, self.optimizer, steps)
        return list(self.session.endpoint.together)

    def fail_half_way(self) -> None:
        """A forward that an exception ends."""

        def fail(*_: object) -> None:
            raise KeyError("half-way")

        hook = self.model.h[1].register_forward_hook(fail)
        with pytest.raises(KeyError):
            loss_of(self.model, 0)
        hook.remove()
        self.optimizer.zero_grad()

    def be_rolled_back(self) -> None:
        """A whole step that is rolled back, as it is when another worker gives it up."""
        (loss_of(self.model, 0) * float("nan")).backward()
        self.optimizer.step()
        assert self.session.rolled_back == 1


@pytest.mark.parametrize("before", [0, 2])
def test_after_a_step_that_one_gave_up(before):
    gives_up, goes_on = Worker(), Worker()
    assert gives_up.pulls(range(before)) == goes_on.pulls(range(before))
    gives_up.fail_half_way()
    goes_on.be_rolled_back()
    assert gives_up.pulls(range(2)) == goes_on.pulls(range(2))


@pytest.mark.parametrize("before", [0, 1, 2])
def test_one_evaluates_between_forward_and_backward(before):
    one, other = Worker(), Worker()
    assert one.pulls(range(before)) == other.pulls(range(before))
    one.session.endpoint.together.clear()
    loss = loss_of(one.model, 5)
    with torch.no_grad():
        loss_of(one.model, 6)
        one.model.h[1](torch.zeros(1, 1, 12))
    loss.backward()
    one.optimizer.step()
    alone = list(one.session.endpoint.together)
    assert alone == other.pulls(range(5, 6))
    assert one.pulls(range(2)) == other.pulls(range(2))
