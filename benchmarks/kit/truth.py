"""Facts about a run of `luwu train` that are known without asking it, for display_truth.py."""

from __future__ import annotations

import math
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.warm import start_program
from luwu.core.manifest import ROOT_NAME
from luwu.store.opening import open_reader

if TYPE_CHECKING:
    import torch

    from luwu.data.corpus import Corpus

LR, WARMUP_STEPS, FINAL_FRACTION = 1e-3, 5, 0.1
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
TEXT_LINES = 20_000


@dataclass(frozen=True)
class Shape:
    """A run: its model, its settings, and how many servers it has elsewhere (0: its own)."""

    name: str
    model: dict[str, Any]
    run: dict[str, Any]
    clip: float | None = None
    servers: int = 0
    transport: str = "tcp"
    data: dict[str, Any] = field(default_factory=lambda: {"validation_windows": 2})

    @property
    def tokens(self) -> int:
        """The tokens of a step."""
        return int(self.run["batch"] * self.model["seq"])

    def settings(self, scratch: Path, steps: int) -> dict[str, Any]:
        """The settings as a settings file has them; the text is written first."""
        text = scratch / "text"
        if not text.exists():
            text.write_text("".join(f"{number} is followed by {number + 1}.\n" for number in range(TEXT_LINES)))
        optimizer = {"lr": LR, "warmup_steps": WARMUP_STEPS, "final_lr_fraction": FINAL_FRACTION}
        return {
            "model": self.model,
            "data": {**self.data, "path": str(text)},
            "optimizer": optimizer | ({"max_grad_norm": self.clip} if self.clip else {}),
            "run": {"memory": "256MiB", **self.run, "steps": steps, "eval_every": steps},
            "sample": {"length": 1},
        }

    def rate(self, step: int, steps: int) -> float:
        """Learning rate after `step` committed steps: up in a line, then down along half a wave of a cosine."""
        if step < WARMUP_STEPS:
            return LR * (step + 1) / WARMUP_STEPS
        down = (1 + math.cos(math.pi * (step - WARMUP_STEPS) / (steps - WARMUP_STEPS))) / 2
        return LR * (FINAL_FRACTION + (1 - FINAL_FRACTION) * down)


@dataclass(frozen=True)
class Truth:
    """Bytes of the blocks, in order, the root first; and what the store's record says."""

    block_bytes: tuple[int, ...]
    workers: int
    steps: int
    attempts: int

    @staticmethod
    def of_run(shape: Shape, stores: Sequence[Path], steps: int) -> Truth:
        """Read the stores of a run that has ended; each of several has a part of every block."""
        elements: dict[str, int] = {}
        for store in stores:
            reader, manifest = open_reader([store])
            for block in manifest.blocks:
                elements[block.name] = elements.get(block.name, 0) + block.elements
            assert reader.step == steps, f"expected {steps} steps in {store}, found {reader.step}"
        size = ELEMENT_BYTES[shape.run.get("dtype", "float32")]
        names = sorted(elements, key=lambda name: (name != ROOT_NAME, name))
        return Truth(tuple(size * elements[name] for name in names), shape.run["workers"], steps, reader.attempts)


def pulled_and_pushed(truth: Truth, rows: Sequence[dict[str, Any]], number: int) -> tuple[int, int]:
    """Bytes that all workers together have pulled and pushed after this row's attempt.

    Each block but the root's is pulled for the forward and for the backward; the last one once, for both, as soon as
    the order of the blocks is known, which is when a first attempt was committed.
    """
    root, *others = truth.block_bytes
    learning = 1 + next((place for place, row in enumerate(rows) if row["committed"]), len(rows))
    attempts = number + 1
    pulled = attempts * (root + 2 * sum(others) - others[-1]) + min(attempts, learning) * others[-1]
    return truth.workers * pulled, truth.workers * attempts * sum(truth.block_bytes)


@contextmanager
def start_servers(shape: Shape, scratch: Path) -> Iterator[dict[str, str]]:
    """Start the servers of a run that has them elsewhere, and give what its launcher must know of them."""
    key = scratch / "job.key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    processes, urls = [], []
    try:
        for number in range(shape.servers):
            command = [sys.executable, "-m", "luwu.cli", "server", "--store", str(scratch / f"server-{number}")]
            command += ["--workers", str(shape.run["workers"]), "--memory", "256MiB", "--listen", "127.0.0.1:0"]
            command += ["--transport", shape.transport, "--key-file", str(key)]
            log = (scratch / f"log-{number}").open("wb")
            processes.append(start_program(command, stdout=subprocess.PIPE, stderr=log, text=True))
            log.close()
            output = processes[-1].stdout
            assert output is not None
            urls.append(output.readline().strip().removeprefix("luwu://"))
        yield {"url": "luwu://" + ",".join(urls), "key_file": str(key)} if urls else {}
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)


def plain_loss(shape: Shape, scratch: Path, folder: Path, exported: Path, attempt: int) -> tuple[float, float]:
    """Loss of an attempt's batch with exported weights, and the norm of its gradient, in float64."""
    from luwu.data.sampler import Sampler

    corpus, model = plain_model(shape, folder, exported)
    sampler = Sampler(corpus.train, shape.model["seq"], shape.run["batch"], 0)
    loss = _cross_entropy(model, *sampler.batch_of(attempt, 0, 1))
    loss.backward()
    squares = sum(
        float(parameter.grad.square().sum()) for parameter in model.parameters() if parameter.grad is not None
    )
    return loss.item(), math.sqrt(squares)


def plain_validation(shape: Shape, folder: Path, exported: Path) -> float:
    """Validation loss with exported weights, in float64, over windows that are spread evenly."""
    from luwu.data.sampler import count_windows, cut

    corpus, model = plain_model(shape, folder, exported)
    seq = shape.model["seq"]
    available = count_windows(corpus.validation, seq)
    wanted = min(available, shape.data["validation_windows"])
    windows = [number * available // wanted for number in range(wanted)]
    return float(_cross_entropy(model.eval(), *cut(corpus.validation, windows, seq)).item())


def plain_model(shape: Shape, folder: Path, exported: Path) -> tuple[Corpus, torch.nn.Module]:
    """The run's text, and its model with exported weights in float64."""
    from safetensors.torch import load_file

    from luwu.data.corpus import Corpus
    from luwu.models.gpt import GPT, GPTConfig

    corpus = Corpus.load(folder)
    assert corpus is not None
    model = GPT(GPTConfig(**shape.model, vocabulary=corpus.vocabulary))
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(exported.glob("*.safetensors")):
        weights |= load_file(file)
    model.load_state_dict(weights)
    return corpus, model.double()


def _cross_entropy(model: torch.nn.Module, inputs: Any, targets: Any) -> torch.Tensor:
    import torch
    from torch.nn.functional import cross_entropy

    logits = model(torch.from_numpy(inputs)).logits
    return cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
