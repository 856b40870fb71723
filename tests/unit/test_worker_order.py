"""Calls in an order that no step can be made of: a typed error that says what to do, and a model that still works."""

import copy

import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import assert_same_state, plain_adamw, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from harness.small_models import WIDTH, Block, Tiny, loss_of, tokens
from luwu.errors import ConfigError, StepOrderError
from luwu.optim.adamw import AdamW
from luwu.worker.parallelize import full_state_dict, parallelize

BOTH_WAYS = pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "references"])


class Trained:
    """A model with its optimizer and session, and a plain peer."""

    def __init__(self, model: nn.Module | None = None, **options) -> None:
        torch.manual_seed(0)
        self.model = model or Tiny()
        self.peer = copy.deepcopy(self.model)
        self.session = FakeSession()
        parallelize(self.model, self.session, **options)
        self.optimizer = AdamW(self.model, lr=1e-2)
        self.peer_optimizer = plain_adamw(self.peer, lr=1e-2)

    def assert_goes_on(self) -> None:
        """Some steps more, and all is as if only they had been."""
        losses = train(self.model, self.optimizer, range(3))
        peers = train(self.peer, self.peer_optimizer, range(3))
        assert losses == pytest.approx(peers, rel=1e-5)
        assert_same_state(full_state_dict(self.model), self.peer.state_dict(), 1e-5)
        assert self.session.endpoint.held == set()


def test_forward_without_an_optimizer():
    model = Tiny()
    parallelize(model, FakeSession())
    with pytest.raises(StepOrderError, match=r"make one first, such as luwu\.AdamW"):
        loss_of(model, 0)


@BOTH_WAYS
def test_second_backward(checkpoint):
    trained = Trained(checkpoint=checkpoint)
    loss = loss_of(trained.model, 0)
    loss.backward(retain_graph=True)
    with pytest.raises(StepOrderError, match="second backward before"):
        loss.backward()
    trained.optimizer.step()
    with pytest.raises((StepOrderError, RuntimeError)):
        loss.backward()
    trained.peer_optimizer.zero_grad()
    loss_of(trained.peer, 0).backward()
    trained.peer_optimizer.step()
    trained.peer_optimizer.zero_grad()
    trained.assert_goes_on()


def test_backward_after_the_step():
    trained = Trained()
    first = loss_of(trained.model, 0)
    first.backward(retain_graph=True)
    trained.optimizer.step()
    with pytest.raises(StepOrderError, match="run the forward again"):
        first.backward()


@BOTH_WAYS
def test_two_forwards_give_the_first_up(checkpoint):
    trained = Trained(checkpoint=checkpoint)
    first = loss_of(trained.model, 0)
    second = loss_of(trained.model, 1)
    with pytest.raises(StepOrderError, match="earlier forward"):
        (first + second).backward()
    assert (trained.session.attempts, trained.session.rolled_back) == (1, 1)
    trained.assert_goes_on()


def test_two_forwards_of_a_model_without_units():
    trained = Trained(nn.Linear(4, 2))
    first, second = (trained.model(torch.ones(4)).sum() for _ in range(2))
    with pytest.raises(StepOrderError, match="earlier forward"):
        (first + second).backward()


def test_forward_and_evaluation_between_backward_and_step():
    trained = Trained()
    loss_of(trained.model, 0).backward()
    with pytest.raises(StepOrderError, match=r"optim\.step"):
        trained.model(tokens(0))
    with torch.no_grad(), pytest.raises(StepOrderError, match=r"optim\.step"):
        trained.model(tokens(0))
    with pytest.raises(StepOrderError, match=r"optim\.step"):
        full_state_dict(trained.model)
    trained.optimizer.zero_grad()  # drops the gradients
    assert trained.session.rolled_back == 1
    trained.assert_goes_on()


@pytest.mark.host_only
def test_an_interrupted_step_votes_once():
    trained = Trained()
    loss_of(trained.model, 0).backward()
    endpoint, wait = trained.session.endpoint, trained.session.endpoint.wait

    def interrupt(handle: int) -> int:
        endpoint.wait = wait
        raise KeyboardInterrupt

    endpoint.wait = interrupt
    with pytest.raises(KeyboardInterrupt):
        trained.optimizer.step()
    trained.optimizer.step()
    assert [what for what, _ in endpoint.log].count("commit") == 1
    loss_of(trained.peer, 0).backward()
    trained.peer_optimizer.step()
    trained.peer_optimizer.zero_grad()
    trained.assert_goes_on()


def test_step_without_forward_or_backward():
    trained = Trained()
    with pytest.raises(StepOrderError, match="expected a forward"):
        trained.optimizer.step()
    loss_of(trained.model, 0)
    with pytest.raises(StepOrderError, match="expected a backward"):
        trained.optimizer.step()
    trained.assert_goes_on()


def test_gradients_taken_by_autograd_grad():
    trained = Trained()
    parameters = [parameter for parameter in trained.model.parameters() if parameter.requires_grad]
    torch.autograd.grad(loss_of(trained.model, 0), parameters)
    with pytest.raises(StepOrderError, match=r"loss\.backward"):
        trained.optimizer.step()
    trained.optimizer.zero_grad()
    trained.assert_goes_on()


def test_unit_with_gradients_outside_the_model():
    trained = Trained()
    with pytest.raises(StepOrderError, match="call the model"):
        trained.model.h[0](torch.ones(2, WIDTH))
    trained.assert_goes_on()


@pytest.mark.host_only
def test_unit_called_twice():
    class Twice(Tiny):
        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.h[0](self.h[0](self.embed(tokens))))

    model = Twice()
    session = FakeSession()
    parallelize(model, session)
    AdamW(model)
    with pytest.raises(StepOrderError, match=r"h\.0.*pass `blocks` without it"):
        model(tokens(0))
    with torch.no_grad():
        model(tokens(0))
    assert session.endpoint.held == {0}  # of the attempt that failed, until the next one


@pytest.mark.parametrize("reentrant", [True, False])
def test_own_checkpointing_around_units(reentrant):
    class Checkpointed(Tiny):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            for block in self.h:
                x = torch_checkpoint(block, x, use_reentrant=reentrant)
            return self.head(self.norm(x))

    trained = Trained(Checkpointed())
    with pytest.raises(StepOrderError, match="checkpointing"):
        loss_of(trained.model, 0).backward()


class Fails(Block):
    """Fails in forward or in backward, once, when told to."""

    when = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.when == "forward":
            raise KeyError("user's own")
        y = super().forward(x)
        if self.when == "backward" and y.requires_grad:
            y.register_hook(self._fail)
        return y

    def _fail(self, gradient: Tensor) -> None:
        raise KeyError("user's own")


@BOTH_WAYS
@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("recovery", ["forward", "zero_grad", "evaluation"])
def test_an_exception_in_user_code_rolls_the_attempt_back(checkpoint, when, recovery):
    torch.manual_seed(0)
    model = Tiny()
    model.h[1] = Fails()
    trained = Trained(model, blocks=[Block], checkpoint=checkpoint)
    trained.assert_goes_on()
    model.h[1].when = when
    with pytest.raises(KeyError, match="user's own"):
        loss_of(model, 0).backward()
    model.h[1].when = ""
    if recovery == "zero_grad":
        trained.optimizer.zero_grad()
    elif recovery == "evaluation":
        with torch.no_grad():
            torch.testing.assert_close(model(tokens(0)), trained.peer(tokens(0)))
    trained.assert_goes_on()
    assert trained.session.rolled_back == 1


def test_an_exception_in_evaluation_releases_everything():
    torch.manual_seed(0)
    model = Tiny()
    model.h[1] = Fails()
    trained = Trained(model, blocks=[Block])
    model.h[1].when = "forward"
    with torch.no_grad(), pytest.raises(KeyError):
        model(tokens(0))
    assert trained.session.endpoint.held == set()
    model.h[1].when = ""
    trained.assert_goes_on()


def test_gradient_set_from_outside():
    trained = Trained()
    trained.model.head.weight.grad = torch.ones_like(trained.model.head.weight)
    with pytest.raises(StepOrderError, match=r"head\.weight.*set from outside"):
        loss_of(trained.model, 0)
    trained.model.head.weight.grad = None
    trained.assert_goes_on()


def test_requires_grad_changed_later():
    trained = Trained()
    trained.model.head.weight.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"head\.weight.*requires_grad"):
        loss_of(trained.model, 0)


def replaced(model: nn.Module) -> None:
    model.head.weight = nn.Parameter(torch.zeros_like(model.head.weight))


def given_data(model: nn.Module) -> None:
    model.head.weight.data = torch.zeros_like(model.head.weight)


def extended(model: nn.Module) -> None:
    model.h[1].scale = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced, r"parameter head\.weight: expected the one .* found it replaced or gone; .*before parallelize"),
        (lambda model: delattr(model.h[2].up, "bias"), r"parameter h\.2\.up\.bias: .*found it replaced or gone"),
        (given_data, r"parameter head\.weight: expected its data as the last step left it, found other data"),
        (
            nn.Module.half,
            r"parameter embed\.weight: .*torch\.float16 of shape \[19, 12\].*before parallelize, which takes",
        ),
        (extended, r"parameter h\.1\.scale: .*found one that came later; .*adapters for example, before parallelize"),
    ],
)
def test_a_model_changed_behind_our_back(change, message):
    trained = Trained()
    change(trained.model)
    with pytest.raises(ConfigError, match=message):
        loss_of(trained.model, 0)
    assert trained.session.step == 0


def test_values_cannot_be_loaded_later_but_buffers_can():
    trained = Trained(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    values = trained.peer.state_dict()
    for load in (trained.model.load_state_dict, lambda state: trained.model.load_state_dict(state, assign=True)):
        with pytest.raises(ConfigError, match=r"parameter 0\.weight: its values belong to the store.*weights="):
            load(values)
    with pytest.raises(ConfigError, match=r"parameter weight: its values belong"):
        trained.model[2].load_state_dict(trained.peer[2].state_dict())
    trained.model.load_state_dict({"1.running_mean": torch.ones(4)}, strict=False)
    assert torch.equal(trained.model[1].running_mean, torch.ones(4))


def test_copies_are_refused():
    trained = Trained()
    with pytest.raises(ConfigError, match="full_state_dict"):
        copy.deepcopy(trained.model)
