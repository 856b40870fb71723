"""The metrics of a `luwu train`, which go to the run's loggers, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luwu.core.room import Room
from luwu.launch.folder import RunFolder
from luwu.launch.on_alert import without_private
from luwu.launch.settings import Settings, all_values
from luwu.observe.loggers import Loggers, Run
from luwu.observe.meter import StepRecord
from luwu.observe.metrics import MetricsLog


class LoggedMetrics(MetricsLog):
    """The file metrics.jsonl, whose new rows the run's loggers get, too, once it is known at which step it goes on."""

    def __init__(self, settings: Settings, folder: RunFolder, room: Room, say: Callable[[str], None]) -> None:
        super().__init__(folder.metrics_path, room)
        self._settings, self._folder, self._say = settings, folder, say
        self._loggers: Loggers | None = None

    def append(self, record: StepRecord) -> None:
        """Write one row, see `MetricsLog.append`."""
        super().append(record)
        if self._loggers is not None:
            self._loggers.step(record)

    def resume(self, attempts: int, step: int, noted: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
        """Make the file agree with the store, see `MetricsLog.resume`, and open the loggers."""
        word = super().resume(attempts, step, noted)
        if self._loggers is None:
            run = Run(
                id=self._folder.saved_id() or self._folder.path.name,
                name=self._folder.path.name,
                folder=self._folder.path,
                settings=without_private(all_values(self._settings)),
            )
            self._loggers = Loggers(self._settings.run.log, run, step, self._say)
        return word

    def note_validation(self, step: int, loss: float) -> None:
        """Write a step's validation loss, see `MetricsLog.note_validation`."""
        super().note_validation(step, loss)
        if self._loggers is not None:
            self._loggers.validated(step, loss)

    def close(self) -> None:
        """Close the file and the loggers."""
        super().close()
        if self._loggers is not None:
            self._loggers.close()
