"""Builds the documentation site into build/docs from the repository's pages and sources; a warning is an error.

usage: python tools/site/build.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pages
import reference
from sphinx.cmd.build import main as sphinx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build"
SOURCE, OUTPUT = BUILD / "docs-source", BUILD / "docs"
DECISIONS = "# Decisions\n\n```{toctree}\n:glob:\n\n0*\n```\n"


def collect() -> dict[str, str]:
    """Return everything that Sphinx reads, by place; raises DeadLinkError."""
    site = pages.Site(ROOT)
    made = {place: (title, text) for title, place, text in reference.pages()}
    found = {"decisions/index.md": DECISIONS, **{place: text for place, (_, text) in made.items()}}
    for source in site.sources():
        found[site.place(source)] = site.page(source)
    found["index.md"] = pages.with_contents(found["index.md"], [(title, place) for place, (title, _) in made.items()])
    for path in sorted(site.files):
        place = site.place(path)
        found[place] = site.shown(path) if place.endswith(".md") else (ROOT / path).read_text()
    return found


def write(found: Mapping[str, str]) -> None:
    """Write what Sphinx reads, and nothing that is there already: Sphinx reads again what has changed."""
    for path in SOURCE.rglob("*"):
        if path.is_file() and path.relative_to(SOURCE).as_posix() not in found:
            path.unlink()
    for place, text in found.items():
        path = SOURCE / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def main() -> int:
    """Collect the pages and run Sphinx; return its exit status."""
    try:
        write(collect())
    except pages.DeadLinkError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    options = ["-W", "--keep-going", "-q", "-j", "auto", "-c", HERE, "-d", BUILD / "docs-trees", SOURCE, OUTPUT]
    return sphinx([str(option) for option in options])


if __name__ == "__main__":
    sys.exit(main())
