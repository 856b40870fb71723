from __future__ import annotations

from types import SimpleNamespace

import pytest

from luwu.errors import ConfigError


def training_arguments(**changed):
    good = {"max_grad_norm": 0.0, "gradient_accumulation_steps": 1, "save_strategy": "no", "world_size": 1}
    return SimpleNamespace(**(good | {"fp16": False, "bf16": False} | changed))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"max_grad_norm": 1.0}, r"max_grad_norm: expected 0\.0, found 1\.0; .*luwu\.AdamW\(max_grad_norm"),
        ({"gradient_accumulation_steps": 4}, r"gradient_accumulation_steps: expected 1, found 4; .*micro_batch_size"),
        ({"save_strategy": "steps"}, r"save_strategy: expected 'no', found 'steps'; .*full_state_dict"),
        ({"world_size": 2}, r"world_size: expected 1, found 2; .*remove RANK"),
        ({"fp16": True}, r"fp16: expected False, found True; .*parallelize\(dtype=torch\.float16\), with optim\.scale"),
    ],
)
def test_arguments_that_the_trainer_would_follow_wrongly(changed, words):
    from luwu.integrations.trainer import StoreCallback

    StoreCallback().on_init_end(training_arguments(), None, None)
    with pytest.raises(ConfigError, match=words):
        StoreCallback().on_init_end(training_arguments(**changed), None, None)


def test_the_trainer_must_step_with_an_optimizer_of_luwu():
    import torch

    from luwu.integrations.trainer import StoreCallback

    own = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    for optimizer in (own, SimpleNamespace(optimizer=own)):  # accelerate wraps it
        with pytest.raises(ConfigError, match=r"found torch\.optim\.sgd\.SGD, .*Trainer\(optimizers=\(optim, None"):
            StoreCallback().on_train_begin(training_arguments(), None, None, optimizer=optimizer)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gradient_clip_val": 0.5}, r"gradient_clip_val: expected None, found 0\.5; .*luwu\.AdamW\(max_grad_norm"),
        ({"accumulate_grad_batches": 2}, r"accumulate_grad_batches: expected 1, found 2; .*micro_batch_size"),
        ({"enable_checkpointing": True}, r"enable_checkpointing: expected False, .*full_state_dict"),
        ({"precision": "bf16-mixed"}, r"precision: expected 32-true, found bf16-mixed; .*parallelize\(dtype="),
    ],
)
def test_arguments_that_lightning_would_follow_wrongly(tmp_path, changed, words):
    import lightning

    from luwu.integrations.lightning import StoreCallback

    good = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
    StoreCallback().setup(lightning.Trainer(**good, default_root_dir=tmp_path), None, "fit")
    with pytest.raises(ConfigError, match=words):
        StoreCallback().setup(lightning.Trainer(**(good | changed), default_root_dir=tmp_path), None, "fit")


def test_lightning_must_not_connect_the_workers():
    from luwu.integrations.lightning import StoreCallback

    good = {"gradient_clip_val": None, "precision": "32-true", "accumulate_grad_batches": 1, "checkpoint_callbacks": []}
    trainer = SimpleNamespace(**good, world_size=2)
    with pytest.raises(ConfigError, match=r"expected one device, found a world of 2; .*devices=1"):
        StoreCallback().setup(trainer, None, "fit")
