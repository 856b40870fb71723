"""The training of `harness.cluster_training` by Ray Train: `python ray_train.py FOLDER`, in Ray's environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray keeps a token in the user's home folder

import ray  # noqa: E402
from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: E402

from luwu.integrations.ray import LuwuTrainer  # noqa: E402


def loop(settings: dict[str, str]) -> None:
    """One worker."""
    from harness.cluster_training import work

    work(Path(settings["folder"]))


def main(folder: Path) -> None:
    """Trains in a Ray of this machine."""
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": environment})
    LuwuTrainer(
        loop,
        train_loop_config={"folder": str(folder)},
        server={"stores": [str(folder / "store")], "memory": "64MiB"},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=9)),
    ).fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
