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


def collect(site: pages.Site) -> dict[str, str]:
    """Return everything that Sphinx reads, by place."""
    made = {place: (title, text) for title, place, text in reference.pages()}
    found = {"decisions/index.md": DECISIONS, **{place: text for place, (_, text) in made.items()}}
    found |= {str(site.place(source)): site.page(source) for source in site.sources()}
    found["index.md"] = pages.with_contents(found["index.md"], [(title, place) for place, (title, _) in made.items()])
    for path in sorted(site.files):
        place = str(site.place(path))
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
    """Collect the pages and run Sphinx; return its exit status, or 1 for a dead link."""
    site = pages.Site(ROOT)
    write(collect(site))
    sys.stderr.writelines(f"{link} [dead link]\n" for link in site.dead)
    options = ["-W", "--keep-going", "-q", "-a", "-j", "auto", "-c", HERE, "-d", BUILD / "docs-trees", SOURCE, OUTPUT]
    return sphinx([str(option) for option in options]) or bool(site.dead)


if __name__ == "__main__":
    sys.exit(main())
