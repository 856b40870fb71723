"""README and docs: lengths, words, links, drawings; and how docstrings begin."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import drawings
import figures

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)|<img[^>]*\ssrc=\"([^\"]+)\"")
OPENINGS = re.compile(r"(What|Of|Where|Whether|One|How|That)\b", re.IGNORECASE)
"""Words that begin half a sentence where a docstring begins with them."""


def prose(page):
    """The text of a page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def docstrings(path):
    """The docstrings of a module, its classes, functions, and attributes, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def test_the_readme_can_be_read_to_its_end():
    assert len(README.read_text().splitlines()) <= 120


def test_the_readmes_table_of_figures_is_short_and_names_what_was_missed():
    section = README.read_text().partition(figures.BEGIN)[2].partition(figures.END)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert 4 <= len(rows) <= 8
    assert "Bars that were missed: " in section
    every = (DOCS / "figures.md").read_text()
    assert all(row in every for row in rows), "run python tools/figures.py benchmarks/results/DATE.json"


def test_the_readme_names_the_commands():
    text = README.read_text()
    assert "make train" in text and "make test" in text


def test_every_bold_word_of_the_readme_is_in_the_glossary():
    defined = {
        word for line in (DOCS / "glossary.md").read_text().splitlines() for word in re.findall(r"\*\*(.+?)\*\*", line)
    }
    assert {word.lower() for word in re.findall(r"\*\*(.+?)\*\*", prose(README))} <= defined


def test_the_glossary_defines_each_word_once():
    first = re.findall(r"^\| \*\*(.+?)\*\* \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(first) > 40
    assert sorted(first) == sorted(set(first))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    broken = []
    for target in (first or second for first, second in LINK.findall(prose(page))):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_source_that_a_page_names_exists(page):
    named = re.findall(r"`([\w./-]+/[\w./-]+\.(?:py|h|cc|c|proto))`", prose(page))
    roots = (ROOT, ROOT / "src", ROOT / "src" / "luwu", ROOT / "native", page.parent)
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    assert not [name for name in missing if not re.search(r"(NAME|COMMAND)\.", name)]


@pytest.mark.parametrize("source", sorted(DOCS.glob("*.dot")), ids=lambda source: source.name)
def test_a_drawing_is_that_of_its_source(source):
    first = source.with_suffix(".svg").read_text().partition("\n")[0]
    assert first == drawings.mark(source), "run make drawings"


def test_docstrings_begin_with_their_subject():
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sorted((ROOT / "src" / "luwu").rglob("*.py"))
        if "_pb2" not in path.name
        for line, text in docstrings(path)
        if OPENINGS.match(text)
    ]
    assert not offenders, "\n".join(offenders)


def test_messages_say_block():
    """Users read *block*; *unit* is a word of the code (docs/glossary.md)."""
    places = sorted((ROOT / "src" / "luwu").rglob("*.py"))
    assert not [str(path) for path in places if re.search(r"""["']units? \{""", path.read_text())]
