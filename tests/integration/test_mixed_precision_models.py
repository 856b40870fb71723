"""float16 and blocks of several dtypes in models of transformers, their Trainer, and commands as a user runs them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from tests.unit.corpora import story
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments
from typer.testing import CliRunner

import luwu
from harness.training import finish, metrics, start_run
from luwu.cli.main import app
from luwu.integrations.trainer import StoreCallback


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
    assert "bfloat16 (1 block)" in run_command("store", "info", tmp_path / "run/store")
    run_command("export", tmp_path / "tuned", "--store", tmp_path / "run/store", "--dtype", "float32")
    tuned = AutoModelForCausalLM.from_pretrained(tmp_path / "tuned")
    assert tuned(input_ids=ids, labels=ids).loss.item() == pytest.approx(losses[-1], rel=0.2)


def test_the_trainer_of_transformers_trains_float16_when_its_loss_is_scaled(tmp_path: Path) -> None:
    """Train as docs/mixed-precision.md says; the losses are those of a loop of one's own."""
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
workers = 1
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
        more = ("--data", "stories", "--steps", str(steps), "--block-dtype", "blocks.1=float32", *flags)
        code, _, error = finish(start_run(tmp_path, run, *more), 200)
        assert code == 0, error
        return metrics(tmp_path, run)

    train("run", 3)
    rows = train("run", 6)
    assert [(row["step"], row["loss_scale"]) for row in rows] == [(step, 2.0**16) for step in range(1, 7)]
    assert rows[-1]["loss"] < rows[0]["loss"]
    dtypes = {block["name"]: block.get("dtype") for block in manifest_of(tmp_path / "run")["blocks"]}
    assert dtypes == {"<root>": None, "tokens": None, "blocks.0": None, "blocks.1": "float32"}
    found = json.loads(run_command("eval", tmp_path / "run", "--json"))
    assert math.isfinite(found["loss"]) and found["loss"] < 6
    run_command("generate", tmp_path / "run", "--prompt", "It", "--length", "3")


def manifest_of(run: Path) -> dict:
    document = json.loads((run / "store/manifest.json").read_text())
    assert document["format"] == 3
    return document["manifest"]
