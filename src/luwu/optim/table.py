"""Table of the optimizers: name, class and first learning rate of each. Reading it does not import torch."""

from __future__ import annotations

from typing import NamedTuple


class OptimizerEntry(NamedTuple):
    """Facts of an optimizer that are known without its class.

    Args:
        class_name: name of its class, which `luwu` exports.
        module: module of the class.
        rate: highest learning rate of a run that begins with random values, for a model of the reference width.
        rate_by_width: True if wider models take a lower rate, because an update is about as large as the rate,
            whatever the gradient's size.
    """

    class_name: str
    module: str
    rate: float
    rate_by_width: bool = True


OPTIMIZERS = {
    "adamw": OptimizerEntry("AdamW", "luwu.optim.adamw", rate=3e-3),
    "adamw8bit": OptimizerEntry("AdamW8bit", "luwu.optim.adamw", rate=3e-3),
    "adam": OptimizerEntry("Adam", "luwu.optim.adam", rate=3e-3),
    "sgd": OptimizerEntry("SGD", "luwu.optim.sgd", rate=1e-2, rate_by_width=False),
    "lion": OptimizerEntry("Lion", "luwu.optim.lion", rate=3e-4),
    "adagrad": OptimizerEntry("Adagrad", "luwu.optim.adagrad", rate=1e-2),
}
"""The optimizers by their name in settings, manifests and the native core.

Lion's rate is a tenth of AdamW's: "typically 3-10x smaller" (Chen et al., 2023, arXiv:2302.06675, section 5).
"""
