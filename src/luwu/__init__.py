"""LuWu: the model lives in the network. Stateless workers; parameters and optimizer states in an out-of-core store."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from luwu.models.tiled_head import tile_head
    from luwu.optim.adagrad import Adagrad
    from luwu.optim.adam import Adam
    from luwu.optim.adamw import AdamW, AdamW8bit
    from luwu.optim.decay import decay_groups
    from luwu.optim.lion import Lion
    from luwu.optim.sgd import SGD
    from luwu.session.local import open
    from luwu.session.remote import connect
    from luwu.session.session import Session
    from luwu.worker.loss_scale import LossScaling
    from luwu.worker.parallelize import full_state_dict, no_sync, parallelize
    from luwu.worker.tiled_loss import tiled_cross_entropy

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "AdamW8bit",
    "Lion",
    "LossScaling",
    "Session",
    "connect",
    "decay_groups",
    "full_state_dict",
    "no_sync",
    "open",
    "parallelize",
    "tile_head",
    "tiled_cross_entropy",
]

# Resolved at first use, so that a server or `luwu --help` does not wait for torch.
_PLACES = {
    "Adagrad": "luwu.optim.adagrad",
    "Adam": "luwu.optim.adam",
    "AdamW": "luwu.optim.adamw",
    "AdamW8bit": "luwu.optim.adamw",
    "Lion": "luwu.optim.lion",
    "LossScaling": "luwu.worker.loss_scale",
    "SGD": "luwu.optim.sgd",
    "Session": "luwu.session.session",
    "connect": "luwu.session.remote",
    "decay_groups": "luwu.optim.decay",
    "full_state_dict": "luwu.worker.parallelize",
    "no_sync": "luwu.worker.parallelize",
    "open": "luwu.session.local",
    "parallelize": "luwu.worker.parallelize",
    "tile_head": "luwu.models.tiled_head",
    "tiled_cross_entropy": "luwu.worker.tiled_loss",
}

try:
    __version__ = version("luwu")
except PackageNotFoundError:  # used from its sources without being installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'luwu' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
