"""Writes the tables of Prometheus's figures, and that of alerts, into docs/monitoring.md, between their markers.

usage: python tools/figures_table.py
"""

from __future__ import annotations

from figures import ROOT, write_section

from luwu.control.figures import TABLES
from luwu.observe.alerts import MEANINGS

BEGIN, END = "<!-- figures of processes: tools/figures_table.py -->", "<!-- end of figures of processes -->"

ALERTS_BEGIN, ALERTS_END = "<!-- alerts: tools/figures_table.py -->", "<!-- end of alerts -->"

PAGE = ROOT / "docs" / "monitoring.md"


def figures_tables() -> str:
    """Return the tables, as the figures are declared."""
    lines = []
    for process, figures in TABLES.items():
        lines += ["", f"**Of {process}**", "", "| name | kind | meaning |", "|---|---|---|"]
        lines += [f"| `{figure.full_name}` | {figure.kind} | {figure.help} |" for figure in figures]
    return "\n".join(lines[1:])


def alerts_table() -> str:
    """Return the table of alerts, as their rules are declared."""
    lines = ["| name | raised when | cleared when |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| `{name}` | {raised} | {cleared} |" for name, (raised, cleared) in MEANINGS.items())]
    )


def main() -> None:
    """Write the tables between the markers."""
    write_section(PAGE, BEGIN, END, figures_tables())
    write_section(PAGE, ALERTS_BEGIN, ALERTS_END, alerts_table())


if __name__ == "__main__":
    main()
