"""The end of a run, for the command that tells it."""

from __future__ import annotations

from dataclasses import dataclass

from luwu.data.corpus import Corpus


@dataclass
class Outcome:
    """End of a run. Parts that the run did not reach are None. `validation_loss` is in nats per token."""

    corpus: Corpus | None = None
    step: int = 0
    stopped: bool = False
    validation_loss: float | None = None
    prompt: str = ""
    sample: str = ""
