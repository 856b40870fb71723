"""The end of a run, for the command that tells it."""

from __future__ import annotations

from dataclasses import dataclass

from luwu.data.corpus import Corpus


@dataclass
class Outcome:
    """End of a run. Parts that the run did not reach are None.

    `validation_loss` is in nats per token. `bytes_written` are those that this machine's server wrote to its store
    since it was started, `bytes_of_run` those of all starts; 0: the server is elsewhere, or nothing was written.
    """

    corpus: Corpus | None = None
    step: int = 0
    stopped: bool = False
    validation_loss: float | None = None
    prompt: str = ""
    sample: str = ""
    bytes_written: int = 0
    bytes_of_run: int = 0

    def stop(self) -> None:
        """Note that the run was stopped before its end."""
        self.stopped = True
