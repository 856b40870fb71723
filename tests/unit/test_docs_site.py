"""The documentation site's pages: what links become, and what the reference has."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest

import luwu
from luwu.core.quantities import Size
from luwu.core.settings import fields_of
from luwu.launch.settings import Settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "site"))

import pages
import reference

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def site(tmp_path):
    """A repository with a few pages and files."""
    for name in ("README.md", "docs/README.md", "docs/start.md", "docs/notes/one.md", "docs/a.svg", "tools/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\n")
    return pages.Site(tmp_path)


@pytest.mark.parametrize(
    ("source", "link", "there"),
    [
        ("README.md", "[s](docs/start.md#here)", "[s](start.md#here)"),
        ("README.md", '<img src="docs/a.svg">', '<img src="a.svg">'),
        ("docs/start.md", "[r](../README.md)", "[r](overview.md)"),
        ("docs/start.md", "[all](README.md)", "[all](index.md)"),
        ("docs/start.md", "[x](../tools/x.py)", "[x](files/tools/x.py.md)"),
        ("docs/start.md", "[notes](notes)", "[notes](notes/index.md)"),
        ("docs/notes/one.md", "[s](../start.md)", "[s](../start.md)"),
        ("docs/start.md", "[p](#part) [w](https://host/a)", "[p](#part) [w](https://host/a)"),
        ("docs/start.md", "```\n[gone](gone.md)\n```\n", "```\n[gone](gone.md)\n```\n"),
    ],
)
def test_links_lead_to_the_same_thing_on_the_site(site, source, link, there):
    (site.root / source).write_text(link)
    assert site.page(source) == there
    assert site.dead == []


def test_words_that_are_searched_for_stand_at_their_headings():
    assert pages.with_words("# A\n\ntext\n", {"# A": ("x", "y z")}) == "# A\n\n```{index} ! x, ! y z\n```\n\ntext\n"
    with pytest.raises(ValueError, match="found ## B"):
        pages.with_words("# A\n### B\n## B of C\n", {"## B": ("x",)})
    repository = pages.Site(ROOT)
    text = repository.page("docs/server.md")
    assert "## A full disk\n\n```{index} ! disk full" in text
    assert all(repository.page(source) for source in pages.ASKED_FOR)


@pytest.mark.parametrize("target", ["gone.md", "../tools/gone.py", "https:///nobody", "ftp://host/a", "../tools"])
def test_a_dead_link_is_noticed(site, target):
    (site.root / "docs/start.md").write_text(f"[x]({target})")
    site.page("docs/start.md")
    assert len(site.dead) == 1 and "docs/start.md" in site.dead[0] and target in site.dead[0]


def test_each_page_is_in_the_first_table_of_contents_that_links_to_it():
    index = f"# All\n\n## One\n\n- [a](a.md#x), [b](b.md)\n\n## Two\n\n{pages.MADE_HERE}\n- [a](a.md), [c](c.md)\n"
    text = pages.with_contents(index, [("Python", "reference/python.md")])
    first, second = text.split("```{toctree}\n")[1:]
    assert first.split("```")[0] == ":hidden:\n:caption: One\n\na\nb\n"
    assert second.split("```")[0] == ":hidden:\n:caption: Two\n\nreference/python\nc\n"
    assert "- [Python](reference/python.md)\n" in text


def test_every_page_is_in_the_list_of_pages():
    site = pages.Site(ROOT)
    linked = {match[2].partition("#")[0] for match in pages.LINK.finditer(site.page("docs/README.md"))}
    places = {site.place(source) for source in site.sources() if not source.startswith("docs/decisions/")}
    assert places - linked == {"index.md"}, "name the page in docs/README.md"


def test_no_link_of_the_pages_is_dead():
    site = pages.Site(ROOT)
    for source in site.sources():
        site.page(source)
    assert site.dead == [] and "examples/ten_lines.py" in site.files


def test_the_reference_has_every_public_name():
    text = reference.python_page()
    assert all(f":: luwu.{name}\n" in text for name in luwu.__all__)
    assert ".. autoexception:: luwu.errors.ConfigError" in text and ".. autofunction:: luwu.open" in text


def test_the_reference_has_every_setting():
    train = reference.settings_page().partition("## `luwu server`")[0]
    for group in Settings.model_fields:
        section = train.partition(f"### `[{group}]`")[2].partition("###")[0]
        assert section.count("\n| `") == len(fields_of(Settings, group))
    assert "| `memory` | `--memory` | size | `8GiB` | memory budget of the server, for example 8GiB |" in train
    assert "| `length` |  | integer | `400` | tokens to generate |" in train


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bool, "true or false"),
        (int | None, "integer"),
        (Size | None, "size"),
        (Annotated[float, "mark"], "number"),
        (Literal["tcp", "udp"], "`tcp` or `udp`"),
        (tuple[str, ...], "list of text"),
        (dict[str, str], "table"),
        (str, "text"),
    ],
)
def test_types_are_told_in_words(annotation, words):
    assert reference.type_words(annotation) == words
