"""Writes the pages of errors and the table of exit statuses into docs/errors.md, between their markers.

usage: python tools/errors_page.py
"""

from __future__ import annotations

from figures import ROOT, write_section

from luwu.core.error_pages import pages
from luwu.core.exits import statuses

BEGIN, END = "<!-- errors: tools/errors_page.py -->", "<!-- end of errors -->"
BEGIN_EXITS, END_EXITS = "<!-- exit statuses: tools/errors_page.py -->", "<!-- end of exit statuses -->"

PAGE = ROOT / "docs" / "errors.md"


def error_sections() -> str:
    """Return the sections of all errors, by their codes."""
    lines = []
    for code, page in pages().items():
        more = ", ".join(f"[{place.replace('.md', '')}]({place})" for place in page.more)
        name = f"{page.error.__module__}.{page.error.__name__}"
        lines += [f"## {code}", "", f"**{page.title}** (`{name}`). {page.meaning}", ""]
        lines += ["| situation | what to do |", "|---|---|"]
        lines += [f"| {when} | {remedy} |" for when, remedy in page.cases]
        lines += ["", f"Exit status {page.exit.value}." + (f" More: {more}." if more else ""), ""]
    return "\n".join(lines).rstrip()


def exits_table() -> str:
    """Return the table of exit statuses."""
    return "\n".join(
        ["| status | meaning |", "|---|---|", *(f"| {status} | {meaning} |" for status, meaning in statuses().items())]
    )


def main() -> None:
    """Write both between their markers."""
    write_section(PAGE, BEGIN_EXITS, END_EXITS, exits_table())
    write_section(PAGE, BEGIN, END, error_sections())


if __name__ == "__main__":
    main()
