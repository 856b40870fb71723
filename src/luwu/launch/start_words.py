"""Sentences for the user when the first worker of a run has its model, and the store's step is known."""

from __future__ import annotations

from collections.abc import Iterator

from luwu.core.words import counted
from luwu.data.corpus import Corpus
from luwu.launch.settings import RunSettings


def size_words(parameters: int, workers: int, corpus: Corpus) -> Iterator[str]:
    """Yield the sizes of the model, the run and the text."""
    yield (
        f"{parameters:,} parameters, {counted(workers, 'worker')}, {corpus.train_tokens:,} {corpus.unit}s of "
        f"{corpus.name}"
    )
    if corpus.blank:
        yield f"{corpus.blank:,} of {corpus.documents:,} documents had no text and were left out"


def step_words(
    step: int, made: int, run: RunSettings, *, server_here: bool, steps_before: int | None = None
) -> Iterator[str]:
    """Yield where the run goes on, and what a crash would cost.

    Args:
        step: the store's committed step.
        made: the last step that metrics.jsonl has a row of; a crash between commit points, or an older snapshot that
            was restored, has undone those after ``step``.
        run: the run's settings.
        server_here: the server has these settings, too.
        steps_before: the steps that the run had in all at its last start; None: it is the first.
    """
    if step >= run.steps:
        yield f"this run is complete: {step} of {run.steps} steps (a larger --steps goes on); validating again"
        return
    again = ""
    if made > step:
        several = made > step + 1
        lost = f"steps {step + 1} to {made} are" if several else f"step {made} is"
        again = f"; {lost} not in the store, and {'are' if several else 'is'} made again"
    if step or again:
        yield f"resuming after step {step} of {run.steps}{again}"
        if steps_before not in (None, run.steps):
            yield (
                f"the learning rate's curve now ends at step {run.steps} instead of {steps_before}, and its rates "
                "from here on are others (docs/optimizers.md)"
            )
    if server_here and run.commit_points.steps != 1:
        yield f"a crash of the server loses the steps since its last commit point (durable = {run.durable!r})"
