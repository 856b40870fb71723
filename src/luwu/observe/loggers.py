"""Loggers: where a run's figures go beside metrics.jsonl, for TensorBoard, trackio, Weights & Biases, or OpenTelemetry.

A logger's package is imported when a run begins, and only if the run has that logger.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TextIO, cast

from pydantic import AfterValidator

from luwu.core.errors import ConfigError
from luwu.observe import logger_thread
from luwu.observe.logger_thread import LoggerThread
from luwu.observe.meter import StepRecord
from luwu.observe.opentelemetry import OpenTelemetry

log = logging.getLogger(__name__)

PROJECT = "luwu"
"""Project of trackio and Weights & Biases, unless the setting names another."""


class Run(NamedTuple):
    """A run as loggers know it."""

    id: str
    name: str
    folder: Path
    settings: Mapping[str, Any]


class _QuietHere:
    """Standard output without what this thread writes; the display of the run writes to it meanwhile.

    Args:
        output: standard output until now.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._thread = threading.current_thread()

    def write(self, text: str) -> int:
        """Write what another thread says."""
        return len(text) if threading.current_thread() is self._thread else self._output.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Return a context in which a package's own words, said in this thread, go nowhere."""
    before = sys.stdout
    quiet = sys.stdout = cast(TextIO, _QuietHere(before))
    try:
        yield
    finally:
        if sys.stdout is quiet:  # else another thread, such as the display's, has set its own since
            sys.stdout = before


class TensorBoard:
    """Event files for TensorBoard. Those of steps that the run makes again are marked, and TensorBoard leaves them out.

    Args:
        run: the run.
        place: the folder; empty: ``tensorboard`` in the run folder.
        step: the last step that was made.
    """

    package = wheels = "tensorboardX"

    def __init__(self, run: Run, place: str, step: int) -> None:
        from tensorboardX import SummaryWriter

        folder = Path(place) if place else run.folder / "tensorboard"
        self._writer = SummaryWriter(logdir=str(folder), purge_step=step + 1 if step else None)
        if not step:
            self._writer.add_text(
                "settings", "\n".join(f"    {name} = {value}" for name, value in run.settings.items())
            )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a step."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class Trackio:
    """A project of trackio on this machine (`trackio show`). A run that goes on stays the same run of the project."""

    package = wheels = "trackio"

    def __init__(self, run: Run, place: str, step: int) -> None:
        import trackio

        self._trackio = trackio
        with _quiet():
            trackio.init(
                project=place or PROJECT, name=run.name, config=dict(run.settings), resume="allow", embed=False
            )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a step."""
        self._trackio.log(dict(figures), step=step)

    def close(self) -> None:
        """Write what is left."""
        with _quiet():
            self._trackio.finish()


class WeightsAndBiases:
    """A run of Weights & Biases in the run folder; it uses no network unless WANDB_MODE is set (see `wandb sync`)."""

    package = wheels = "wandb"

    def __init__(self, run: Run, place: str, step: int) -> None:
        import wandb

        self._run = wandb.init(
            project=place or PROJECT, name=run.name, id=run.id, dir=str(run.folder), config=dict(run.settings),
            resume="allow", mode=None if "WANDB_MODE" in os.environ else "offline",
            settings=wandb.Settings(
                silent=True, console="off", init_timeout=self._init_seconds(),
                x_disable_meta=True,  # they have the command line, where the URL of --on-alert may have a secret
            ),
        )  # fmt: skip

    @staticmethod
    def _init_seconds() -> float:
        """Return the longest wait for a server: the process cannot end during it, so it is not wandb's own of 90 s."""
        return float(os.environ.get("WANDB_INIT_TIMEOUT", logger_thread.CLOSE_SECONDS))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a step."""
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()


KINDS: dict[str, type[TensorBoard] | type[Trackio] | type[WeightsAndBiases] | type[OpenTelemetry]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
    "opentelemetry": OpenTelemetry,
}


def _name_and_place(target: str) -> tuple[str, str]:
    name, _, place = target.partition(":")
    return name, place


def check_target(text: str) -> str:
    """Return a target NAME or NAME:PLACE; raises ConfigError for a name that no logger has."""
    name, _ = _name_and_place(text)
    if name not in KINDS:
        raise ConfigError(f"expected {', '.join(KINDS)}, or one of them with :PLACE, found {text!r}")
    return text


LogTarget = Annotated[str, AfterValidator(check_target)]
"""Text that `check_target` takes."""


def check_packages(targets: Sequence[str]) -> None:
    """Raise ConfigError for the first logger whose package, or the exporter of OpenTelemetry, is not installed."""
    for target in targets:
        name, _ = _name_and_place(target)
        package = KINDS[name].package
        if not _is_installed(package):
            raise ConfigError(f"log: {name} needs the package {package}, found none; pip install {KINDS[name].wheels}")
        if name == "opentelemetry":
            OpenTelemetry.check()


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # nor is the package that it is in
        return False


class Loggers:
    """All loggers of a run, each in a thread of its own. One that fails, or does not answer, is left out from then on.

    No call but `close` waits for a logger.

    Args:
        targets: as `LogTarget`.
        run: the run.
        step: the last step that was made.
        say: shows a sentence to the user; called in the threads that call this object.
    """

    def __init__(self, targets: Sequence[str], run: Run, step: int, say: Callable[[str], None]) -> None:
        self._say = say
        self._open: dict[str, LoggerThread] = {}
        for target in targets:
            name, place = _name_and_place(target)
            self._open[target] = LoggerThread(name, partial(KINDS[name], run, place, step))

    def step(self, record: StepRecord) -> None:
        """Tell the figures of an attempt; nothing of one that was rolled back."""
        if record.committed:
            self._log(record.step, figures_of(record))

    def validated(self, step: int, loss: float) -> None:
        """Tell a validation loss that was measured after its step's figures."""
        self._log(step, {"validation/loss": loss})

    def close(self) -> None:
        """Close all of them; waits at most `CLOSE_SECONDS` of `luwu.observe.logger_thread` for all together."""
        deadline = time.monotonic() + logger_thread.CLOSE_SECONDS
        for logger in self._open.values():
            logger.end()
        self._each(lambda logger: logger.wait(deadline))
        self._open.clear()

    def _log(self, step: int, figures: Mapping[str, float]) -> None:
        self._each(lambda logger: logger.put(step, figures))

    def _each(self, call: Callable[[LoggerThread], None]) -> None:
        for target, logger in list(self._open.items()):
            try:
                call(logger)
            except Exception as error:
                self._open.pop(target).leave_out()
                log.warning("%s takes no more figures", target, exc_info=error)
                self._say(f"{target} takes no more figures of this run, but metrics.jsonl does: {error}")


def figures_of(record: StepRecord) -> dict[str, float]:
    """Return the figures of an attempt by the names that loggers have for them; those that there are."""
    figures = {
        "train/loss": record.loss,
        "train/lr": record.lr,
        "train/grad_norm": record.grad_norm,
        "train/loss_scale": record.loss_scale,
        "validation/loss": record.validation_loss,
        "speed/tokens_per_second": record.tokens_per_second,
        "speed/step_seconds": record.seconds,
        "speed/hidden": record.hidden,
    }
    return {name: value for name, value in figures.items() if value is not None}
