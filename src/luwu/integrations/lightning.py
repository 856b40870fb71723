"""Checks for Lightning's Trainer: they refuse arguments that it would follow silently, and wrongly."""

from __future__ import annotations

from lightning import Callback, LightningModule, Trainer

from luwu.core.errors import ConfigError


class StoreCallback(Callback):
    """Looks at the Trainer's arguments before the first step.

    Lightning clips ``.grad``, and would find none: gradients leave during backward. Its checkpoints would hold no
    values: parameters and optimizer states are in the store.

    Raises:
        ConfigError: on an argument that cannot work, saying what to set instead.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the arguments."""
        if trainer.gradient_clip_val:
            raise ConfigError(
                f"lightning.Trainer gradient_clip_val: expected None, found {trainer.gradient_clip_val}; gradients "
                "leave for the server during backward, so there are none to clip: use luwu.AdamW(max_grad_norm=...)"
            )
        if trainer.precision != "32-true":
            raise ConfigError(
                f"lightning.Trainer precision: expected 32-true, found {trainer.precision}; the model's blocks have "
                "their dtypes: use luwu.parallelize(dtype=...), with optim.scale for float16"
            )
        if trainer.accumulate_grad_batches != 1:
            raise ConfigError(
                f"lightning.Trainer accumulate_grad_batches: expected 1, found {trainer.accumulate_grad_batches}; one "
                "backward makes a step: give it the whole batch, and luwu.parallelize(micro_batch_size=...)"
            )
        if trainer.checkpoint_callbacks:
            raise ConfigError(
                "lightning.Trainer enable_checkpointing: expected False, found a checkpoint callback; every step is in "
                "the store already, and the model at hand has no values: save what luwu.full_state_dict(model) gives"
            )
        if trainer.world_size > 1:
            raise ConfigError(
                f"lightning.Trainer: expected one device, found a world of {trainer.world_size}; LuWu connects the "
                "workers: give devices=1, and remove RANK, LOCAL_RANK and WORLD_SIZE from os.environ after luwu.open"
            )
