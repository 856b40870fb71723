"""Ways to make one gradient of those of a step's workers: their mean, their median, a trimmed mean."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from luwu.core.errors import ConfigError
from luwu.core.quantities import shown

MEAN = "mean"
AGGREGATE = "run.aggregate"
"""Name of the setting in the record of a run."""
MOST_TRIMMED_WORKERS = 64
"""Most workers whose gradients are trimmed, as native code has it."""


def _checked(text: str) -> str:
    words = " ".join(text.split())
    if re.fullmatch(r"mean|median|trimmed( ([1-9]|[12]\d|3[01]))?", words, re.ASCII) is None:
        raise ConfigError(f"expected mean, median, trimmed, or trimmed with a number from 1 to 31, found {shown(text)}")
    return "trimmed" if words == "trimmed 1" else words


Aggregation = Annotated[str, AfterValidator(_checked)]
"""Text that `trims_for` reads: ``mean``, ``median``, ``trimmed`` or ``trimmed 2``."""


def trims_for(aggregate: str, workers: int, name: str = "aggregate") -> int:
    """Return how many of a step's values are left out at each end, element by element; 0: their mean is taken.

    Args:
        aggregate: ``mean``; ``median``; ``trimmed`` leaves out one at each end, ``trimmed 2`` two.
        workers: number of workers of the run.
        name: begins an error's message.

    Raises:
        ConfigError: so many workers have no such average.
    """
    if aggregate == MEAN:
        return 0
    number = re.search(r"\d+", aggregate)
    least = int(number[0]) if number else 1
    fewest = 2 * least + 1
    if not fewest <= workers <= MOST_TRIMMED_WORKERS:
        raise ConfigError(
            f"{name}: expected {fewest} to {MOST_TRIMMED_WORKERS} workers for {aggregate}, found {workers}; "
            f"run {'more' if workers < fewest else 'fewer'} workers, or take mean"
        )
    return (workers - 1) // 2 if aggregate == "median" else least


def require_even_shares(aggregate: str, batch: int, workers: int, *, balance: bool, name: str = "aggregate") -> None:
    """Refuse shares of a batch that differ: a worker's gradient is multiplied by its share before it is compared.

    Raises:
        ConfigError: ``aggregate`` is not ``mean``, and workers would have other numbers of the batch's rows.
    """
    if aggregate == MEAN or (batch % workers == 0 and not balance):
        return
    found = "balance" if balance else f"a batch of {batch} for {workers} workers"
    raise ConfigError(
        f"{name}: expected equal shares of the batch for {aggregate}, found {found}; take a batch that the workers "
        "divide evenly (--batch), without balance"
    )
