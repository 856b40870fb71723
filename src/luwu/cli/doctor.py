"""`luwu doctor`: say what this machine can do and what each missing thing costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from luwu.cli.terminal import AsJson, add_rows, say_json

WHOLE_LINES = 10_000
"""Characters of a line that no terminal shows: a word must not be broken where a program looks for it."""


def doctor(
    store: Annotated[Path, typer.Option(help="folder that the store would go to")] = Path("runs"),
    as_json: AsJson = False,
    report: Annotated[Path | None, typer.Option(help="write a new file for an issue instead; it has no keys")] = None,
    run: Annotated[Path | None, typer.Option(help="with --report: run folder that the issue is about")] = None,
) -> None:
    """Say what this machine can do, and what each missing thing costs.

    `--report FILE` writes that into a file for an issue, with versions, environment variables of LuWu, torch and CUDA,
    and, with `--run`, the settings, last figures, alerts and file sizes of a run. Keys and texts are left out. Read it
    before you send it.
    """
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from luwu.core.errors import ConfigError
    from luwu.probe.machine import examine

    if report is not None:
        from luwu.probe.report import write_report

        if as_json:
            raise ConfigError("--json: expected none beside --report, which writes a file; leave one out")
        write_report(report, store, run)
        typer.echo(f"written to {report}; read it before you send it: it names folders of this machine")
        return
    if run is not None:
        raise ConfigError("--run: expected --report beside it")
    findings = examine(store)
    if as_json:
        say_json([asdict(finding) for finding in findings])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("", "what", "found", "what that costs"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = Text("ok", style="green") if finding.good else Text("--", style="yellow")
        add_rows(table, [(mark, finding.name, finding.found, finding.cost)])
    console = Console()
    if not console.is_terminal:
        console.width = WHOLE_LINES
    console.print(table, highlight=False)
