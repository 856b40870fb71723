"""DeepSpeed's NVMe optimizer alone: one sample is the median update of `steps` steps with a batch as small as can be.

The gradients it swaps out during backward (4 bytes per parameter) are not in the time, their reading back is.
"""

from __future__ import annotations

import statistics
import tempfile

from kit.child import serve, settings, take_stdout


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    from deepspeed_engine import Trainer, shared_files

    wanted = {"rows": 1, **settings()}
    before = shared_files()
    with tempfile.TemporaryDirectory(dir=wanted["folder"], prefix="deepspeed-") as swap_folder:
        trainer = Trainer(wanted, swap_folder)
        for _ in range(wanted.get("warm_up", 2)):
            trainer.step()

        def sample() -> dict[str, float]:
            update = statistics.median(trainer.step()["update"] for _ in range(wanted["steps"]))
            return {"seconds": update, "parameters_per_second": trainer.parameters / update}

        serve(replies, sample, lambda: {"parameters": trainer.parameters})
    for left_behind in shared_files() - before:
        left_behind.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
