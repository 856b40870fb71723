"""Writes the tables of Prometheus's figures into docs/monitoring.md, between its two markers.

usage: python tools/figures_table.py
"""

from __future__ import annotations

from figures import ROOT, write_section

from luwu.control.figures import TABLES

BEGIN, END = "<!-- figures of processes: tools/figures_table.py -->", "<!-- end of figures of processes -->"

PAGE = ROOT / "docs" / "monitoring.md"


def figures_tables() -> str:
    """Return the tables, as the figures are declared."""
    lines = []
    for process, figures in TABLES.items():
        lines += ["", f"**Of {process}**", "", "| name | kind | meaning |", "|---|---|---|"]
        lines += [f"| `{figure.full_name}` | {figure.kind} | {figure.help} |" for figure in figures]
    return "\n".join(lines[1:])


def main() -> None:
    """Write the tables between the markers."""
    write_section(PAGE, BEGIN, END, figures_tables())


if __name__ == "__main__":
    main()
