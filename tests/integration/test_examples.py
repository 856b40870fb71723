"""The examples as users run them, on a little text: each ends, and all of them train as plain torch does."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.integration.network import KEY, ServerProcess

import luwu.data
from luwu.data.sampler import Order

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # several trainers are imported at once

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 4
TRAINERS = {"with_accelerate": 1, "with_lightning": 1, "with_trainer": 2}
"""Examples that train the same model, and with how many workers."""


def start(example, *arguments, rank=0, workers=1, **environment):
    """Start one worker of an example, as torchrun would."""
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": workers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / f"{example}.py"), *map(str, arguments)],
        env=os.environ | {name: str(value) for name, value in (given | environment).items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Return the standard output; on a busy machine standard error may say what the process waits for."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, output + errors
    return output


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Some modules of the standard library in one file."""
    folder = tmp_path_factory.mktemp("text")
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    path = folder / "text.txt"
    path.write_bytes(b"".join(module.read_bytes() for module in modules)[:300_000])
    return path


@pytest.fixture(scope="module")
def trained(text):
    """Output and folder of each trainer's example, all of them running at once."""
    folders = {name: text.parent / name for name in TRAINERS}
    started = {
        name: [
            start(name, folders[name], "--data", text, "--steps", STEPS, rank=rank, workers=workers)
            for rank in range(workers)
        ]
        for name, workers in TRAINERS.items()
    }
    said = {name: "".join(finish(process) for process in processes) for name, processes in started.items()}
    return said, {name: load_file(folder / "model/model.safetensors") for name, folder in folders.items()}


@pytest.fixture(scope="module")
def plain(text, trained):
    """The same training in plain torch, on the whole batch."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig.from_pretrained(text.parent / "with_trainer/model")
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda taken: 1.0 - 0.9 * min(1.0, taken / STEPS))
    windows = luwu.data.Windows(luwu.data.prepare(text, text.parent / "plain").train, 128)
    order = Order(len(windows), 8, 0)
    for step in range(STEPS):
        batch = torch.stack([windows[index] for index in order.indices(step)])
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_trains_as_plain_torch_does(trained, plain, name):
    values = trained[1][name]
    assert set(values) == set(plain)
    for key, value in values.items():
        torch.testing.assert_close(value, plain[key], rtol=1e-3, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}")


def test_trainers_train_the_same_bits(trained):
    first, second = trained[1]["with_accelerate"], trained[1]["with_lightning"]
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_trainers_say_how_it_went(trained):
    said = trained[0]
    assert "validation loss" in said["with_lightning"]
    assert said["with_trainer"].count("nats per byte") == 2


def test_the_torch_loop_resumes_on_a_server(text, tmp_path):
    arguments = [tmp_path / "run", "--data", text, "--server"]
    with ServerProcess(tmp_path / "store", 2) as server:
        for steps, shown in ((10, ["step 10"]), (20, ["step 20"])):
            workers = [
                start("torch_loop", *arguments, server.url, "--steps", steps, rank=rank, workers=2, LUWU_JOB_KEY=KEY)
                for rank in range(2)
            ]
            lines = finish(workers[0]).splitlines()
            assert finish(workers[1]) == ""
            assert [line.split(":")[0] for line in lines[:-1]] == shown
            assert lines[-1].startswith("validation loss") and lines[-1].endswith("bits per byte")
    assert (tmp_path / "run/model.pt").exists()
