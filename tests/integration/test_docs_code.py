"""Blocks of code in README and docs: each runs here or in benchmarks/docs_run.py, or says why it cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
import yaml

from harness.pages.blocks import CHECKED, GOES_ON, RUN, SHELL, SHOWN, SLOW, all_blocks, blocks_of, luwu_words
from harness.pages.given import taken_for_granted
from harness.pages.running import run_blocks
from luwu.cli.main import app
from luwu.core.settings import build, tomllib
from luwu.launch.settings import Settings
from luwu.server.settings import ServerFile
from luwu.switch.settings import SwitchFile

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = all_blocks(ROOT)
FILES = [block for block in BLOCKS if block.language in CHECKED]
RUN_HERE = [block for block in BLOCKS if block.runs and not block.slow]
COMMANDS = [
    (block.name, command)
    for block in BLOCKS
    if block.language in SHELL
    for command in block.commands()
    if luwu_words(command)
]
LUWU = typer.main.get_command(app)

COMMENTED = f"""\
<!-- not run: no GPU -->
```sh
luwu doctor
```
{GOES_ON}
```python
x
```
{SLOW}

```sh
```
text
```text
```
"""

PROMPTED = """\
```console
host1$ luwu a \\
    --b 'c d'   # why
# nothing
X=1 luwu e ... | cat -n
ls
```
"""


def test_every_block_says_its_language_and_runs_or_says_why_not():
    assert len(BLOCKS) > 60 and len(RUN_HERE) > 25
    for block in BLOCKS:
        assert block.language in (*RUN, *CHECKED, *SHOWN), f"{block.name}: name the language behind the fence"
        for file in re.findall(r"[\w/]+\.py", block.reason):
            assert file == "train.py" or (ROOT / file).exists(), block.name


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_blocks_run(tmp_path):
    """One test for all of them, because they share what pages take for granted, and what Python imports for it."""
    failed = run_blocks(RUN_HERE, tmp_path)
    assert not failed, "\n".join(f"{name}: {error}" for name, error in failed.items())


@pytest.mark.parametrize(("place", "command"), COMMANDS)
def test_commands_have_the_flags_that_pages_give_them(place, command):
    here, words = LUWU, luwu_words(command)
    while hasattr(here, "commands"):
        here, words = here.commands[words[0]], words[1:]
    here.make_context(here.name, words)


@pytest.mark.parametrize("block", FILES, ids=lambda block: block.name)
def test_files_in_pages_are_what_programs_read(block):
    if block.language == "yaml":
        assert isinstance(yaml.safe_load(block.text), dict)
        return
    tables = tomllib.loads(block.text)
    build(ServerFile if "server" in tables else SwitchFile if "switch" in tables else Settings, tables)


def test_what_a_comment_says_of_a_block_is_read():
    first, second, third, last = blocks_of("page.md", COMMENTED)
    assert (first.line, first.reason, first.runs, first.text) == (2, "no GPU", False, "luwu doctor\n")
    assert second.goes_on and second.runs and not second.reason
    assert third.slow and third.runs
    assert not (last.slow or last.goes_on or last.reason or last.runs)


def test_commands_are_read_without_prompts_comments_and_line_ends():
    [block] = blocks_of("page.md", PROMPTED)
    assert [luwu_words(command) for command in block.commands()] == [["a", "--b", "c d"], ["e"], None]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("model = wrap(model)\nmodel.go()", {"wrap", "model"}),
        ("with open() as session:\n    session.step()", {"open"}),
        ("for batch in batches:\n    batch.go()", {"batches"}),
        ("optim = f()\ndef attempt():\n    optim.step(other)", {"f", "other"}),
    ],
)
def test_names_that_a_block_takes_for_granted_are_found(text, names):
    assert taken_for_granted(text) == names
