"""Writes the table of the network's timeouts into docs/timeouts.md, between its two markers.

usage: python tools/timeouts_table.py
"""

from __future__ import annotations

from figures import ROOT, write_section

from luwu.control.timeouts import Timeouts

BEGIN, END = "<!-- timeouts: tools/timeouts_table.py -->", "<!-- end of timeouts -->"

PAGE = ROOT / "docs" / "timeouts.md"


def timeouts_table() -> str:
    """Return the table, as the timeouts are declared."""
    lines = ["| setting | seconds | meaning |", "|---|---|---|"]
    for name, field in Timeouts.model_fields.items():
        lines.append(f"| `{name}` | {field.default:g} | {' '.join(field.description.split())} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table between the markers."""
    write_section(PAGE, BEGIN, END, timeouts_table())


if __name__ == "__main__":
    main()
