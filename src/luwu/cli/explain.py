"""`luwu explain`: what bound a run's steps, what would help, and by how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from luwu.cli.terminal import AsJson, say, say_json


def explain(
    run: Annotated[Path, typer.Argument(help="run folder of luwu train on this machine")],
    as_json: AsJson = False,
) -> None:
    """Explain what bound a run's last steps, what would help, and by how much.

    It reads `metrics.jsonl` in the run folder; the run may be under way, and is not disturbed. Gains follow from the
    planner's model of a step, fitted to the run.

    Exit status: 0 explained, 2 the folder has no run, or no steps that tell.
    """
    from luwu.plan import explained_run

    found = explained_run.explain_run(run)
    if as_json:
        say_json(explained_run.as_json(found))
    else:
        for line in explained_run.lines_of(found):
            say(line)
