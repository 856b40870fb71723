"""The figures of a `luwu train` for Prometheus: the run's, and those of the server in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from luwu.control.exposition import Exposition, Labelled, Table
from luwu.control.figures import ALERT, SERVER, TRAINING, WORKER_BEHIND
from luwu.launch.elsewhere import ServerElsewhere
from luwu.observe.meter import Meter
from luwu.server.server import LocalServer

if TYPE_CHECKING:
    from luwu.launch.listening import ListeningServer
    from luwu.launch.restarts import Restarts
    from luwu.launch.run_reports import RunReports

Server: TypeAlias = "LocalServer | ListeningServer | ServerElsewhere"


def expose_run(
    place: str, taken: RunReports, server: Server, restarts: Restarts, say: Callable[[str], None]
) -> Exposition:
    """Answer Prometheus at a place, and say where; with an empty one nothing answers. Raises as `Exposition`."""
    tables = [Table(TRAINING, lambda: training_stats(taken.meter, restarts.made)), Table(SERVER, server.figures)]
    labelled = [Labelled(WORKER_BEHIND, "rank", server.behind), Labelled(ALERT, "alert", taken.alerts.standing)]
    found = Exposition(place, tables, labelled)
    if found.url:
        say(f"figures for Prometheus at {found.url}")
    return found


def training_stats(meter: Meter, restarts: int) -> dict[str, Any]:
    """Return a run's figures as `luwu.control.figures.TRAINING` reads them; those of no attempt before the first."""
    if (last := meter.last) is None:
        return {"steps": meter.steps, "restarts": restarts}
    return {
        "step": last.step,
        "steps": meter.steps,
        "loss": last.loss,
        "validation_loss": meter.validation_loss,
        "grad_norm": last.grad_norm,
        "lr": last.lr,
        "loss_scale": last.loss_scale,
        "speed": meter.rates.tokens_per_second,
        "seconds": last.seconds,
        "hidden": meter.rates.hidden,
        "left": meter.rates.seconds_left,
        "restarts": restarts,
    }
