"""The default learning rate of a run, by optimizer, by the model's width, and by whether it starts from weights."""

from __future__ import annotations

from pathlib import Path

from luwu.config import Settings
from luwu.errors import ConfigError
from luwu.launch.folder import MODEL_CONFIG_NAME, RunFolder, has_weights
from luwu.models.config_file import read_config_file, text_fields
from luwu.store.folders import ORIGIN_NAME

REFERENCE_WIDTH = 128
"""Width of the default model; the rates below were tried with it."""

RATES = {"adamw": 3e-3, "adamw8bit": 3e-3, "adam": 3e-3, "lion": 3e-4, "adagrad": 1e-2, "sgd": 1e-2}
"""Highest rates at the reference width, by the optimizer's kind.

Lion's is a tenth of AdamW's: "typically 3-10x smaller" (Chen et al., 2023, arXiv:2302.06675, section 5).
"""

_BY_WIDTH = ("adamw", "adamw8bit", "adam", "lion", "adagrad")
"""Optimizers whose updates are about as large as the rate, whatever the gradient's size; see `rate_for`."""

FINE_TUNING_RATE = 2e-5
"""AdamW's rate for fine-tuning, as for Llama 2's (Touvron et al., 2023, arXiv:2307.09288, section 3.1)."""

_WIDTH_KEYS = ("hidden_size", "n_embd", "d_model", "dim")
_UNKNOWN_WIDTH = 2048
_MOST_WIDTH = 2**40


def rate_for(optimizer: str, width: int) -> float:
    """Return the highest rate for a model of this width that begins with random values.

    Where each update is about as large as the rate, a layer's output changes by the rate times the width, so the rate
    is proportional to the inverse of the width (Yang et al., 2022, arXiv:2203.03466, table 3: Adam, hidden weights). In
    the same table SGD keeps its rate at all widths. For widths from 768 to 2,560 the rate is within 30 % of those of
    GPT-3's models (Brown et al., 2020, arXiv:2005.14165, table 2.1). Narrower models than the reference have its rate.
    """
    scale = min(1.0, REFERENCE_WIDTH / width) if optimizer in _BY_WIDTH else 1.0
    return float(f"{RATES[optimizer] * scale:.2g}")


def fine_tuning_rate_for(optimizer: str) -> float:
    """The highest rate for a model that begins with weights, in the same ratio to AdamW's as the rates in `RATES`."""
    return float(f"{FINE_TUNING_RATE * RATES[optimizer] / RATES['adamw']:.2g}")


def with_rate(settings: Settings, folder: RunFolder, *, takes_weights: bool = False) -> tuple[Settings, str]:
    """Return the settings with a learning rate, and a text with the reason; a given rate stays, and the text is empty.

    Args:
        settings: the run's settings.
        folder: the run's folder, which may have its store.
        takes_weights: the run goes on from another run's weights.
    """
    if settings.optimizer.lr is not None:
        return settings, ""
    name, path = settings.optimizer.name, None if settings.model.path is None else Path(settings.model.path)
    imported = (folder.stores(settings)[0] / ORIGIN_NAME).exists()
    if takes_weights or imported or (path is not None and has_weights(path)):
        rate, why = fine_tuning_rate_for(name), f"for fine-tuning with {name}, as the model starts from weights"
    else:
        width = settings.model.hidden if path is None else _width_of(path)
        rate, why = rate_for(name, width or _UNKNOWN_WIDTH), f"for {name} and a width of {width}"
        if width is None:
            why = f"for {name} and a width of {_UNKNOWN_WIDTH}, as the model's configuration does not tell its own"
    optimizer = settings.optimizer.model_copy(update={"lr": rate})
    return settings.model_copy(update={"optimizer": optimizer}), f"learning rate {rate:g}, {why}; --lr sets another"


def _width_of(path: Path) -> int | None:
    """The width in a model's configuration, or None; workers report a configuration that cannot be read."""
    file = path / MODEL_CONFIG_NAME if path.is_dir() else path
    try:
        config = read_config_file(file, "model.path")
    except ConfigError:
        return None
    for table in (config, text_fields(config)):
        for key in _WIDTH_KEYS:
            if isinstance(table.get(key), int) and 0 < table[key] <= _MOST_WIDTH:
                return int(table[key])
    return None
