"""Checks for the Trainer of transformers: they refuse arguments that it would follow silently, and wrongly."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from luwu.core.errors import ConfigError
from luwu.optim.optimizer import StoreOptimizer


class StoreCallback(TrainerCallback):
    """Looks at the TrainingArguments when the Trainer is made, and at its optimizer when training begins.

    The Trainer clips ``.grad`` at 1.0 by default, and would find none: gradients leave during backward. Its checkpoints
    would hold no values: parameters and optimizer states are in the store.

    Raises:
        ConfigError: on an argument that cannot work, saying what to set instead.
    """

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check the arguments."""
        if args.max_grad_norm:
            raise ConfigError(
                f"TrainingArguments.max_grad_norm: expected 0.0, found {args.max_grad_norm}; gradients leave for the "
                "server during backward, so the Trainer has none to clip: use luwu.AdamW(max_grad_norm=...)"
            )
        if args.fp16 or args.bf16:
            name = "fp16" if args.fp16 else "bf16"
            raise ConfigError(
                f"TrainingArguments.{name}: expected False, found True; the model's blocks have their dtypes: use "
                f"luwu.parallelize(dtype=torch.{'float16' if args.fp16 else 'bfloat16'}), with optim.scale for float16"
            )
        if args.gradient_accumulation_steps != 1:
            raise ConfigError(
                f"TrainingArguments.gradient_accumulation_steps: expected 1, found {args.gradient_accumulation_steps}; "
                "one backward makes a step: give it the whole batch, and luwu.parallelize(micro_batch_size=...)"
            )
        if args.save_strategy != "no":
            raise ConfigError(
                f"TrainingArguments.save_strategy: expected 'no', found {str(args.save_strategy)!r}; every step is in "
                "the store already, and the model at hand has no values: save what luwu.full_state_dict(model) gives"
            )
        if args.world_size > 1:
            raise ConfigError(
                f"TrainingArguments.world_size: expected 1, found {args.world_size}; LuWu connects the workers: remove "
                "RANK, LOCAL_RANK and WORLD_SIZE from os.environ after luwu.open and before TrainingArguments"
            )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check the optimizer, which accelerate wraps. Without ``optimizers=`` the Trainer makes one of torch."""
        given = kwargs.get("optimizer")
        steps = getattr(given, "optimizer", given)
        if steps is not None and not isinstance(steps, StoreOptimizer):
            raise ConfigError(
                f"Trainer: expected LuWu's optimizer, found {type(steps).__module__}.{type(steps).__qualname__}, whose "
                "steps change nothing, because parameters belong to the store: make one such as optim = "
                "luwu.AdamW(model, lr=...), and give it with Trainer(optimizers=(optim, None))"
            )
