"""Blocks of code in a page, and what a comment before a block says of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

FENCE = re.compile(r"^```(\S*)\s*$")
REASON = re.compile(r"^<!-- not run: (.+) -->$")
GOES_ON = "<!-- goes on with the block before -->"
SLOW = "<!-- run by benchmarks/docs_run.py alone: takes seconds -->"
SHELL = ("sh", "bash", "console")
RUN = ("python", *SHELL)
CHECKED = ("toml", "yaml")
SHOWN = ("text",)
"""Languages of blocks that are no code: output, drawings in letters."""

PROMPT = re.compile(r"^(\w+[$#]|\$) ")
COMMENT = re.compile(r"(^|\s)#\s.*$")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        page: path of the page, from the repository's root.
        line: number of its first line, from 1.
        language: the word behind its fence.
        text: its lines.
        reason: why it does not run; empty: it does.
        goes_on: it uses names of the block before it.
        slow: it takes longer than tests may.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str = ""
    goes_on: bool = False
    slow: bool = False

    @property
    def name(self) -> str:
        """Page and line."""
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        """True for code that a test or a benchmark runs."""
        return self.language in RUN and not self.reason

    def commands(self) -> list[str]:
        """Return the commands of a block of a shell: without prompts and comments, continued lines as one."""
        text = self.text.replace("\\\n", " ")
        lines = (COMMENT.sub("", PROMPT.sub("", line)).strip() for line in text.splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    opened: tuple[int, str] | None = None
    said, inside = "", []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, inside = (number, fence[1]), []
            elif line.strip():
                said = line.strip()
        elif line.rstrip() == "```":
            reason = REASON.match(said)
            yield Block(
                page, *opened, "\n".join(inside) + "\n", reason[1] if reason else "", said == GOES_ON, said == SLOW
            )
            opened, said = None, ""
        else:
            inside.append(line)


def all_blocks(root: Path) -> list[Block]:
    """Return the blocks of all pages that users read."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return [block for page in pages for block in blocks_of(page.relative_to(root).as_posix(), page.read_text())]


def luwu_words(command: str) -> list[str] | None:
    """Return the arguments of a luwu command, or None for another one.

    ``...`` stands for more and is left out, and so is what a pipe leads to.
    """
    words = list(takewhile(lambda word: word != "|", shlex.split(command)))
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return [word for word in words[1:] if word != "..."] if words[:1] == ["luwu"] else None
