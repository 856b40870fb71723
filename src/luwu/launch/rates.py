"""The default learning rate of a run, by optimizer, by the model's width, and by whether it starts from weights."""

from __future__ import annotations

from pathlib import Path

from luwu.core.errors import ConfigError
from luwu.launch.folder import RunFolder, config_file, has_weights
from luwu.launch.settings import Settings
from luwu.models.config_file import read_config_file, text_fields
from luwu.optim.rates import fine_tuning_rate_for, rate_for
from luwu.store.folders import ORIGIN_NAME

_WIDTH_KEYS = ("hidden_size", "n_embd", "d_model", "dim")
_UNKNOWN_WIDTH = 2048
_MOST_WIDTH = 2**40


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
    words = f"learning rate up to {rate:g}, {why}; --lr sets another"
    return settings.model_copy(update={"optimizer": optimizer}), words


def _width_of(path: Path) -> int | None:
    """The width in a model's configuration, or None; workers report a configuration that cannot be read."""
    try:
        config = read_config_file(config_file(path), "model.path")
    except ConfigError:
        return None
    for table in (config, text_fields(config)):
        for key in _WIDTH_KEYS:
            if isinstance(table.get(key), int) and 0 < table[key] <= _MOST_WIDTH:
                return int(table[key])
    return None
