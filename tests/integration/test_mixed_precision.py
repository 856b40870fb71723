"""float16 with a scaled loss, and blocks of several dtypes, over real servers, stores and commands."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.integration.network import KEY
from tests.integration.test_network import contents
from tests.integration.test_network_servers import servers, url_of
from tests.integration.test_sessions import equal
from tests.integration.udp import QUICK, in_threads, local_server, udp_tree
from tests.unit.corpora import story
from tests.unit.worker_models import Block, Tiny, loss_of
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments
from typer.testing import CliRunner

import luwu
from luwu.cli.main import app
from luwu.errors import ManifestMismatchError, StepOrderError
from luwu.fabric.remote import connect
from luwu.fabric.session import Session
from luwu.integrations.trainer import StoreCallback
from luwu.store.exporting import export_safetensors
from luwu.store.folders import open_reader
from luwu.store.upkeep import info, verify

WORKERS = 2
ATTEMPTS = 10
SCALING = luwu.LossScaling(growth_interval=3)
MIXED = {"h.1": torch.float32, "head": torch.bfloat16}

Attempt = tuple[float, float, bool]
"""Loss, scale, whether it was committed."""


def tiny(depth: int = 3) -> Tiny:
    torch.manual_seed(0)
    return Tiny(depth)


def spoiled_loss(model: nn.Module, attempt: int, rank: int) -> Tensor:
    """In two attempts one worker's loss is so large that its gradients overflow, and no other's."""
    loss = loss_of(model, 10 * attempt + rank)
    return loss * 2.0**15 if (attempt, rank) in ((2, 1), (7, 0)) else loss


def trained(
    session: Session, model: Tiny, attempts: int = ATTEMPTS, limit: float | None = None, **options
) -> tuple[list[Attempt], dict[str, Tensor]]:
    """Go on to so many attempts; what they were like, and the values that came of them."""
    options = {"dtype": torch.float16, "loss_scaling": SCALING} | options
    luwu.parallelize(model, session, [Block], **options)
    optimizer = luwu.AdamW(model, lr=1e-2, max_grad_norm=limit)
    found = []
    while session.attempts < attempts:
        scale = optimizer.loss_scale
        loss = spoiled_loss(model, session.attempts, session.rank)
        optimizer.scale(loss).backward()
        optimizer.step()
        found.append((loss.item(), scale, optimizer.last_step_committed))
    return found, luwu.full_state_dict(model)


def train_over(way: str, folder: Path, **options) -> list[tuple[list[Attempt], dict[str, Tensor]]]:
    """What each of two workers found, through one server or two."""
    models = [tiny() for _ in range(WORKERS)]
    with ExitStack() as stack:
        if way == "local":
            joined = stack.enter_context(local_server(folder, WORKERS))
        else:
            if way == "two servers":
                url = url_of(*stack.enter_context(servers(folder, 2)))
            else:
                settings = {"transport": "tcp"} if way == "tcp" else {}
                url = stack.enter_context(udp_tree(folder / "store", WORKERS, (), **settings))
            joined = lambda rank: connect(url, rank=rank, workers=WORKERS, key=KEY, timeouts=QUICK)  # noqa: E731

        def one(rank: int) -> tuple[list[Attempt], dict[str, Tensor]]:
            with joined(rank) as session:
                return trained(session, models[rank], **options)

        return in_threads(WORKERS, one)


@pytest.mark.parametrize("limit", [None, 0.5], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("dtypes", [{}, MIXED], ids=["float16", "mixed"])
def test_one_workers_overflow_is_everybodys_skipped_step_on_every_way(tmp_path: Path, dtypes: dict, limit) -> None:
    options = {"block_dtypes": dtypes, "limit": limit}
    found = {way: train_over(way, tmp_path / way, **options) for way in ("local", "tcp", "two servers", "udp")}
    (reference, values), (other, _) = found["local"]
    assert [attempt for attempt, (_, _, taken) in enumerate(reference) if not taken] == [2, 7]
    assert [scale / 2**16 for _, scale, _ in reference] == [1, 1, 1, 0.5, 0.5, 0.5, 1, 1, 0.5, 0.5]
    assert [step[1:] for step in other] == [step[1:] for step in reference]
    for way in ("tcp", "two servers"):
        assert [attempts for attempts, _ in found[way]] == [reference, other]
        assert all(torch.equal(each[name], value) for _, each in found[way] for name, value in values.items())
    for (attempts, _), expected in zip(found["udp"], (reference, other), strict=True):  # sums in fixed point
        assert [step[1:] for step in attempts] == [step[1:] for step in expected]
        assert [step[0] for step in attempts] == pytest.approx([step[0] for step in expected], rel=1e-3)


def die_after(run: Path, attempts: int) -> None:
    """Train so far in a process that embeds its server, and die."""
    with luwu.open(run, memory="1MiB", rank=0, workers=1) as session:
        trained(session, tiny(), attempts, block_dtypes=MIXED)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_that_is_killed_goes_on_with_its_scale_and_the_same_bits(tmp_path: Path) -> None:
    with luwu.open(tmp_path / "once", memory="1MiB", rank=0, workers=1) as session:
        undisturbed, _ = trained(session, tiny(), block_dtypes=MIXED)
    assert not undisturbed[7][2]
    for attempts in (2, 8):  # the second time right after a step that was rolled back
        process = multiprocessing.get_context("spawn").Process(target=die_after, args=(tmp_path / "often", attempts))
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
    with luwu.open(tmp_path / "often", memory="1MiB", rank=0, workers=1) as session:
        rest, _ = trained(session, tiny(), block_dtypes=MIXED)
    assert rest == undisturbed[7:]  # the attempt that had overflowed does so again
    assert equal(contents(tmp_path / "once/store"), contents(tmp_path / "often/store"))
    assert info([tmp_path / "often/store"]).loss_scale == undisturbed[-1][1]


def test_a_store_of_several_dtypes_keeps_masters_and_copies_of_each(tmp_path: Path) -> None:
    for optimizer in (luwu.AdamW, luwu.AdamW8bit):
        run = tmp_path / optimizer.kind
        with luwu.open(run, memory="1MiB") as session:
            model = luwu.parallelize(
                tiny(), session, [Block], optimizer=optimizer, dtype=torch.float16, block_dtypes=MIXED
            )
            optim = optimizer(model, lr=1e-2)
            for step in range(3):
                optim.scale(loss_of(model, step)).backward()
                optim.step()
                assert optim.last_step_committed
            with pytest.raises(StepOrderError, match=r"optim\.scale"):
                loss_of(model, 4).backward()
            values = luwu.full_state_dict(model)
        reader, manifest = open_reader([run / "store"])
        dtypes = {block.name: manifest.dtype_of(block) for block in manifest.blocks}
        assert set(dtypes.items()) >= {
            ("h.0", "float16"),
            ("h.1", "float32"),
            ("head", "bfloat16"),
            ("<root>", "float16"),
        }
        for number, block in enumerate(manifest.blocks):
            raw, states = reader.read_block(number)
            dtype = getattr(torch, dtypes[block.name])
            assert len(states) == (2 if dtype is torch.float32 else 3)
            if dtype is torch.float16 or (dtype is torch.bfloat16 and optimizer is luwu.AdamW):
                master = torch.from_numpy(states[0])
                assert torch.equal(torch.from_numpy(raw).view(dtype), master.to(dtype))
        export_safetensors([run / "store"], run / "low")
        export_safetensors([run / "store"], run / "exact", dtype="float32")
        low, exact = (load_file(run / name / "model.safetensors") for name in ("low", "exact"))
        assert all(low[name].dtype is values[name].dtype and torch.equal(low[name], values[name]) for name in low)
        assert low["h.1.up.weight"].dtype is torch.float32 and low["head.weight"].dtype is torch.bfloat16
        assert any(not torch.equal(exact[name], low[name].float()) for name in exact)
        assert verify([run / "store"]).damaged == 0
        described = info([run / "store"])
        assert described.dtype == "float16 (3 blocks), float32 (1 blocks), bfloat16 (1 blocks)"
        assert described.loss_scale == 2.0**16


def test_other_dtypes_than_the_stores_are_refused(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory="1MiB") as session:
        luwu.parallelize(tiny(), session, [Block], dtype=torch.float16, block_dtypes={"h.1": torch.float32})
    with luwu.open(tmp_path, memory="1MiB") as session:
        with pytest.raises(ManifestMismatchError, match=r"dtype of block h\.1: expected bfloat16, found float32"):
            luwu.parallelize(tiny(), session, [Block], dtype=torch.float16, block_dtypes={"h.1": torch.bfloat16})


def run_command(*arguments: object) -> str:
    """Run a command in this process; its standard output."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, (done.stdout, done.stderr, done.exception)
    return done.stdout


def test_an_imported_model_of_several_dtypes_trains_and_is_read(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(4)
    twin = AutoModelForCausalLM.from_config(config)
    twin.save_pretrained(tmp_path / "llama")
    flags = ("--dtype", "float16", "--block-dtype", "lm_head=float32", "--block-dtype", "model.layers.1=bfloat16")
    run_command("import", tmp_path / "llama", "--store", tmp_path / "run/store", *flags)
    ids = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(1))
    with luwu.open(tmp_path / "run", memory="4MiB") as session:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        luwu.parallelize(
            model, session, dtype=torch.float16,
            block_dtypes={"lm_head": torch.float32, "model.layers.1": torch.bfloat16},
        )  # fmt: skip
        with torch.no_grad():
            logits = model(input_ids=ids).logits
            assert logits.dtype is torch.float32
            torch.testing.assert_close(logits, twin(input_ids=ids).logits, rtol=0.1, atol=0.1)
        optimizer = luwu.AdamW(model, lr=3e-3, max_grad_norm=1.0)
        losses = []
        for _ in range(4):
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.scale(loss).backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] and session.step == 4
        assert 0 < optimizer.last_grad_norm < 100  # of the loss itself
    assert "bfloat16 (1 blocks)" in run_command("store", "info", tmp_path / "run/store")
    run_command("export", tmp_path / "tuned", "--store", tmp_path / "run/store", "--dtype", "float32")
    tuned = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned")
    assert tuned(input_ids=ids, labels=ids).loss.item() == pytest.approx(losses[-1], rel=0.2)


def test_the_trainer_of_transformers_trains_float16_when_its_loss_is_scaled(tmp_path: Path) -> None:
    """As docs/mixed-precision.md has it; the losses are those of a loop of one's own."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, use_cache=False
    )
    batches = [torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(step)) for step in range(4)]

    class ScalingTrainer(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
            loss = optimizer.scale(loss)
            return (loss, outputs) if return_outputs else loss

        def get_train_dataloader(self):
            return [{"input_ids": batch, "labels": batch} for batch in batches]

    losses = {}
    for way in ("loop", "trainer"):
        torch.manual_seed(3)
        with luwu.open(tmp_path / way, memory="4MiB") as session:
            model = luwu.parallelize(AutoModelForCausalLM.from_config(config), session, dtype=torch.float16)
            optimizer = luwu.AdamW(model, lr=1e-2)
            if way == "loop":
                losses[way] = []
                for batch in batches:
                    loss = model(input_ids=batch, labels=batch).loss
                    optimizer.scale(loss).backward()
                    optimizer.step()
                    losses[way].append(loss.item())
                continue
            arguments = TrainingArguments(
                output_dir=str(tmp_path / "out"), max_steps=4, max_grad_norm=0.0, save_strategy="no", use_cpu=True,
                logging_steps=1, report_to="none", disable_tqdm=True,
            )  # fmt: skip
            trainer = ScalingTrainer(
                model=model, args=arguments, train_dataset=batches, callbacks=[StoreCallback()],
                optimizers=(optimizer, LambdaLR(optimizer, lambda step: 1.0)),
            )  # fmt: skip
            trainer.train()
            assert session.step == 4
            losses[way] = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses["trainer"] == pytest.approx(losses["loop"], abs=1e-3)


SETTINGS = """
[model]
layers = 2
hidden = 32
heads = 2
seq = 32
[data]
validation_windows = 8
[run]
batch = 6
memory = "64MiB"
dtype = "float16"
[sample]
length = 4
"""


@pytest.mark.slow
def test_the_train_command_scales_and_its_runs_are_read(tmp_path: Path) -> None:
    (tmp_path / "stories").write_text("".join(map(story, range(40))))
    (tmp_path / "settings.toml").write_text(SETTINGS)

    def train(run: str, steps: int, *flags: str) -> list[dict]:
        command = [sys.executable, "-m", "luwu.cli", "train", "--config", "settings.toml", "--data", "stories"]
        command += ["--run", run, "--steps", str(steps), "--block-dtype", "blocks.1=float32", *flags]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]

    once = train("once", 6)
    assert [row["loss_scale"] for row in once] == [2.0**16] * 6
    assert all(row["committed"] for row in once) and once[-1]["loss"] < once[0]["loss"]
    dtypes = {block["name"]: block.get("dtype") for block in manifest_of(tmp_path / "once")["blocks"]}
    assert dtypes == {"<root>": None, "blocks.0": None, "blocks.1": "float32"}
    train("often", 3)
    often = train("often", 6)
    assert [row["loss"] for row in often[:3]] == [row["loss"] for row in once[:3]]
    found = json.loads(run_command("eval", tmp_path / "once", "--json"))
    assert np.isfinite(found["loss"]) and found["loss"] < 6
    run_command("generate", tmp_path / "once", "--prompt", "It", "--length", "3")


def manifest_of(run: Path) -> dict:
    document = json.loads((run / "store/manifest.json").read_text())
    assert document["format"] == 3
    return document["manifest"]
