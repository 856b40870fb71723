"""AdamW with states of 8 bits."""

from __future__ import annotations

from luwu.optim.adamw import AdamW


class AdamW8bit(AdamW):
    """`AdamW` whose store keeps both states in 8 bits, by blocks of 256 (Dettmers et al., 2022, arXiv:2110.02861).

    For bfloat16 parameters the store keeps 4 bytes of states instead of 12 for each, for float32 ones 2 instead of 8,
    and moves as many less in a step: docs/optimizers.md says what the codes are. Arguments and errors are `AdamW`'s.
    """

    kind = "adamw8bit"
