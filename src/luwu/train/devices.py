"""The device that a worker computes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from luwu.core.errors import ConfigError
from luwu.launch.settings import Settings

if TYPE_CHECKING:
    import torch


def check_device(settings: Settings) -> None:
    """Raise ConfigError if workers are to compute on GPUs and torch finds none."""
    if settings.run.device == "cpu":
        return
    import torch  # takes a second, which a run on the CPU does without

    if torch.cuda.is_available():
        return
    build = "that build has no CUDA: install another" if torch.version.cuda is None else "look at NVIDIA's driver"
    raise ConfigError(
        f"run.device: expected a GPU that torch {torch.__version__} can use, found none; {build}, or use --device cpu "
        "(luwu doctor says what there is)"
    )


def choose_device(settings: Settings, rank: int) -> torch.device:
    """Return the CPU, or this worker's turn of the CUDA devices; ConfigError if there is none."""
    import torch

    check_device(settings)
    if settings.run.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", rank % torch.cuda.device_count())
