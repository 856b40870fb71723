"""DeepSpeed's side of the training benchmarks: a GPT whose optimizer states are offloaded; a sample is `steps` steps.

Settings: shape, rows, steps, warm_up, folder, dtype (bfloat16 unless given), offload (nvme unless given), and
DeepSpeed's tuning (see deepspeed_engine.config).
"""

from __future__ import annotations

import statistics
import tempfile

from kit.child import serve, settings, take_stdout

PARTS = ("forward", "backward", "update", "seconds")


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    from deepspeed_engine import Trainer, shared_files

    wanted = settings()
    before = shared_files()
    with tempfile.TemporaryDirectory(dir=wanted["folder"], prefix="deepspeed-") as swap_folder:
        trainer = Trainer(wanted, swap_folder)
        for _ in range(wanted.get("warm_up", 2)):
            trainer.step()
        tokens = wanted["rows"] * wanted["shape"]["seq"]

        def sample() -> dict[str, float]:
            steps = [trainer.step() for _ in range(wanted["steps"])]
            parts = {part: statistics.median(step[part] for step in steps) for part in PARTS}
            total = sum(step["seconds"] for step in steps)
            return {**parts, "tokens_per_second": tokens * len(steps) / total, "loss": steps[-1]["loss"]}

        serve(replies, sample, lambda: {"parameters": trainer.parameters})
    for left_behind in shared_files() - before:
        left_behind.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
