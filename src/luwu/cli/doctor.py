"""`luwu doctor`: say what this machine can do and what each missing thing costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    store: Annotated[Path, typer.Option(help="folder that the store would go to")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Say what this machine can do, and what each missing thing costs."""
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from luwu.cli.terminal import add_rows
    from luwu.probe.machine import examine

    findings = examine(store)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("", "what", "found", "what that costs"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = Text("ok", style="green") if finding.good else Text("--", style="yellow")
        add_rows(table, [(mark, finding.name, finding.found, "" if finding.good else finding.cost)])
    Console().print(table, highlight=False)
