"""Pages of the repository as pages of the site: where each stands there, and what its links lead to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

FENCE = re.compile(r"^(```.*?^```[^\n]*\n?)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\(|<img[^>]*\ssrc=\")([^()\s\"]+)")
MADE_HERE = "<!-- made from the sources: make docs -->"
"""Place in docs/README.md for links to the pages that `reference.py` makes."""

OUTSIDE = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages outside of docs, and their places on the site."""

ASKED_FOR = {
    "docs/server.md": {
        "## What fails how": ("worker killed", "killed worker", "restart worker", "lost worker", "server lost"),
        "## A full disk": ("disk full", "no space left"),
    },
    "docs/errors.md": {"## LUWU-105": ("out of memory", "oom")},
    "docs/fine-tuning.md": {"# Fine-tuning with adapters": ("fine-tune", "fine-tuning", "finetune", "lora")},
    "docs/optimizers.md": {"## Learning rate schedule": ("cosine", "warmup", "learning rate")},
}
"""Words that people search for, by the headings which answer them: the search finds these first."""


@dataclass
class Site:
    """The pages of a repository, and the other files that they link to.

    Args:
        root: the repository.
        files: files that are no pages and that a page has linked to; each gets a page that shows it.
        dead: links that lead nowhere, in words.
    """

    root: Path
    files: set[str] = field(default_factory=set)
    dead: list[str] = field(default_factory=list)

    def sources(self) -> Iterator[str]:
        """Yield the paths of all pages, from the repository's root."""
        yield from OUTSIDE
        yield from (path.relative_to(self.root).as_posix() for path in sorted((self.root / "docs").rglob("*.md")))

    def place(self, path: str) -> str | None:
        """Return the place on the site of a file or a folder of the repository; None: there is no such thing."""
        if path in OUTSIDE:
            return OUTSIDE[path]
        if path == "docs/README.md":
            return "index.md"
        if (self.root / path).is_dir() and path.startswith("docs/"):
            return f"{path.removeprefix('docs/')}/index.md"
        if not (self.root / path).is_file():
            return None
        if path.endswith(".md") and path.startswith("docs/"):
            return path.removeprefix("docs/")
        self.files.add(path)
        return path.removeprefix("docs/") if path.endswith(".svg") else f"files/{path}.md"

    def page(self, source: str) -> str:
        """Return a page's text with the links of the site."""
        folder, here = PurePosixPath(source).parent, PurePosixPath(self.place(source) or "").parent

        def moved(match: re.Match[str]) -> str:
            target, hash_mark, anchor = match[2].partition("#")
            if not target or _is_outside(target):
                return match[0]
            place = self.place(normpath(folder / target))
            if place is None:
                self.dead.append(
                    f"{source}: expected a link to a file, a folder of pages or http(s)://HOST, found {target}"
                )
                return match[0]
            return f"{match[1]}{relpath(place, here)}{hash_mark}{anchor}"

        parts = FENCE.split((self.root / source).read_text())
        text = "".join(part if FENCE.fullmatch(part) else LINK.sub(moved, part) for part in parts)
        return with_words(text, ASKED_FOR.get(source, {}))

    def shown(self, path: str) -> str:
        """Return a page that shows a file of the repository."""
        language = {".py": "python", ".toml": "toml", ".yaml": "yaml"}.get(Path(path).suffix, "text")
        return f"---\norphan: true\n---\n\n# {path}\n\n````{language}\n{(self.root / path).read_text()}````\n"


def with_words(text: str, asked_for: Mapping[str, Iterable[str]]) -> str:
    """Return a page whose headings have the words that the search finds them by; raises ValueError for none such."""
    for heading, words in asked_for.items():
        before, found, after = f"\n{text}".partition(f"\n{heading}\n")
        if not found:
            raise ValueError(f"ASKED_FOR: expected a heading of the page, found {heading}")
        entries = ", ".join(f"! {each}" for each in words)  # ! marks a main entry; others come last
        text = f"{before}{found}\n```{{index}} {entries}\n```\n{after}".removeprefix("\n")
    return text


def _is_outside(target: str) -> bool:
    """Return True for an address in another place. There is no network, so nobody looks if it is there."""
    parts = urlsplit(target)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def with_contents(index: str, made: Iterable[tuple[str, str]]) -> str:
    """Return the first page with a table of contents for each of its sections: the pages that its links lead to.

    Args:
        index: text of docs/README.md, with the links of the site.
        made: titles and places of the pages that are made from the sources.
    """
    index = index.replace(MADE_HERE, "\n".join(f"- [{title}]({place})" for title, place in made))
    intro, *sections = re.split(r"^(?=## )", index, flags=re.MULTILINE)
    seen: set[str] = set()
    texts = [intro]
    for section in sections:
        caption = section.partition("\n")[0].removeprefix("## ")
        linked = [match[2].partition("#")[0] for match in LINK.finditer(section)]
        new = [place for place in dict.fromkeys(linked) if place.endswith(".md") and place not in seen]
        seen.update(new)
        contents = "\n".join(place.removesuffix(".md") for place in new)
        texts.append(f"{section.rstrip()}\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{contents}\n```\n\n")
    return "".join(texts)
