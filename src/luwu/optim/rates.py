"""Learning rates to begin with, by optimizer and by the width of a model."""

from __future__ import annotations

from luwu.optim.table import OPTIMIZERS

REFERENCE_WIDTH = 128
"""Width of the default model; the rates of `OPTIMIZERS` were tried with it."""


FINE_TUNING_RATE = 2e-5
"""AdamW's rate for fine-tuning, as for Llama 2's (Touvron et al., 2023, arXiv:2307.09288, section 3.1)."""


def rate_for(optimizer: str, width: int) -> float:
    """Return the highest rate for a model of this width that begins with random values.

    Where each update is about as large as the rate, a layer's output changes by the rate times the width, so the rate
    is proportional to the inverse of the width (Yang et al., 2022, arXiv:2203.03466, table 3: Adam, hidden weights). In
    the same table SGD keeps its rate at all widths. For widths from 768 to 2,560 the rate is within 30 % of those of
    GPT-3's models (Brown et al., 2020, arXiv:2005.14165, table 2.1). Narrower models than the reference have its rate.
    """
    entry = OPTIMIZERS[optimizer]
    scale = min(1.0, REFERENCE_WIDTH / width) if entry.rate_by_width else 1.0
    return float(f"{entry.rate * scale:.2g}")


def fine_tuning_rate_for(optimizer: str) -> float:
    """Return the highest rate for a model that begins with weights; its ratio to AdamW's is that of `OPTIMIZERS`."""
    return float(f"{FINE_TUNING_RATE * OPTIMIZERS[optimizer].rate / OPTIMIZERS['adamw'].rate:.2g}")
