"""Blocks compiled by torch.compile: the same training, and a typed error for what cannot be traced."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import assert_same_state, plain_adamw, train
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from harness.small_models import Block, Tiny
from luwu.errors import ConfigError
from luwu.optim.adamw import AdamW
from luwu.worker.parallelize import full_state_dict, parallelize


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()


@pytest.mark.parametrize("way", ["method", "function"])
@pytest.mark.parametrize("micro_batch_size", [None, 3])
@pytest.mark.parametrize("checkpoint", [True, False], ids=["checkpoint", "references"])
def test_compiled_blocks_learn_the_same(way, micro_batch_size, checkpoint):
    counter = CompileCounterWithBackend("aot_eager")
    model, session = Tiny(), FakeSession()
    peer = copy.deepcopy(model)
    for index, block in enumerate(model.h):
        if way == "method":
            block.compile(backend=counter, dynamic=False)
        else:
            model.h[index] = torch.compile(block, backend=counter, dynamic=False)
    parallelize(model, session, blocks=[Block], micro_batch_size=micro_batch_size, checkpoint=checkpoint)
    losses = train(model, AdamW(model, lr=1e-2), range(3))
    assert losses == pytest.approx(train(peer, plain_adamw(peer, lr=1e-2), range(3)), rel=1e-5)
    found = {name.replace("_orig_mod.", ""): value for name, value in full_state_dict(model).items()}
    assert_same_state(found, peer.state_dict(), 1e-5)
    # One graph serves all blocks and steps; slices of 3 rows and of 1 are two.
    assert counter.frame_count == (1 if micro_batch_size is None else 2)
    assert session.endpoint.held == set()


def test_compiling_around_units_is_refused():
    for make in (lambda model: model.compile() or model, torch.compile):
        with pytest.raises(ConfigError, match=r"model: expected no compiled module around blocks.*block\.compile\(\)"):
            parallelize(make(Tiny()), FakeSession(), blocks=[Block])
    nested = nn.Sequential(Tiny())
    nested[0].compile()
    with pytest.raises(ConfigError, match="0: expected no compiled module around blocks"):
        parallelize(nested, FakeSession(), blocks=[Block])


def test_compiling_after_parallelize_is_refused():
    model = Tiny()
    parallelize(model, FakeSession())
    for module, name in ((model, "model"), (model.h[1], r"h\.1")):
        with pytest.raises(ConfigError, match=rf"{name}\.compile\(\).*parallelized already.*before luwu\.parallelize"):
            module.compile()


def test_a_worker_trains_without_torchs_compiler(tmp_path: Path) -> None:
    code = (
        "import sys, torch, luwu\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))\n"
        "with luwu.open(sys.argv[1]) as session:\n"
        "    luwu.parallelize(model, session, blocks=[torch.nn.Linear])\n"
        "    optimizer = luwu.AdamW(model, lr=1e-3)\n"
        "    model(torch.ones(2, 8)).sum().backward()\n"
        "    optimizer.step()\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=True)
