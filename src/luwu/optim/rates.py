"""Learning rates to begin with, by optimizer and by the width of a model."""

from __future__ import annotations

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
