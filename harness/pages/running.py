"""Running blocks: Python in this process, commands in processes of their own, each page in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from harness.pages.blocks import Block, luwu_words
from harness.pages.world import KEY, MODEL_FOLDERS, SMALLER, placed, prepare, write_model
from harness.warm import start_program

SECONDS = 120.0
"""Longest time of one command."""

SMALL_RUN = ("--steps", "3", "--batch", "4", "--seq", "16", "--workers", "1", "--memory", "64MiB")
SMALL_GPT = ("--layers", "1", "--hidden", "16", "--heads", "2")
SMALL_WORDS = {"500": "1", "1500": "3"}
"""Steps of the pages' commands, and those of a test."""

HERE = {"server": ("--memory", "64MiB", "--listen", "127.0.0.1:0"), "watch": ("--host", "127.0.0.1", "--port", "0")}
"""Flags that are added to commands: little memory, loopback, and a free port."""

SERVING = ("server", "switch", "link", "watch")
"""Commands that go on until they are stopped."""

PREPARED = {
    "runs/novels": "luwu train --run runs/novels --store /nvme0/novels",
    "runs/gpt": "luwu train --run runs/gpt",
    "page.pem": "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=host0 -keyout page.key -out page.pem",
    "/nvme0/llama": "luwu import llama/ --store /nvme0/llama",
    "llama-dcp": "luwu export llama-dcp/ --dcp --store /nvme0/llama",
}
"""Runs and stores that pages speak of, and the commands that make them where the page has not done so."""

MAKING = ("--run ", 'open("', "import llama/ --store ", "export ", "-out ")
"""Words before the name of a run or a store that is made, and not only spoken of."""


class BlockError(Exception):
    """A command of a block has failed."""


class Runner:
    """Runs the blocks of one page, in order, and has their sessions open until it is closed.

    Args:
        folder: what `world.prepare` has written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, Any] = {}
        self._open = ExitStack()
        self._url = ""
        self._runs = 0

    def close(self) -> None:
        """Close the sessions and servers of the last block."""
        self._open.close()

    def run(self, block: Block) -> None:
        """Run a block; raises what its Python raises, and BlockError for a command that fails."""
        if not block.goes_on:
            self._open.close()
            self._names = {}
        if block.language == "python":
            self._run_python(block)
        else:
            for command in block.commands():
                self._prepare(command)
                self._run_command(command)

    def _run_python(self, block: Block) -> None:
        from harness.pages.given import Given
        from luwu.session.session import Session

        text = placed(block.text, self._folder)
        for large, small in SMALLER.items():
            text = text.replace(large, small)
        self._prepare(text)
        scratch = Path(tempfile.mkdtemp(dir=self._folder))
        if "luwu.connect()" in text:
            self._serve_workers(scratch / "store")
        with inside(self._folder):
            given = self._open.enter_context(closing(Given(text, scratch)))
            found = dict(given.names_of(text))
            self._names = found | self._names
            exec(compile(text, block.name, "exec"), self._names)
            for value in self._names.values():
                if isinstance(value, Session):
                    self._open.callback(value.close)

    def _serve_workers(self, store: Path) -> None:
        """Have a server for `luwu.connect`, as the engine of a cluster would."""
        self._run_command(f"luwu server --store {store} --workers 1 --key-file job.key")
        for name, value in (("LUWU_SERVER", self._url), ("LUWU_JOB_KEY", KEY)):
            os.environ[name] = value
            self._open.callback(os.environ.pop, name)

    def _prepare(self, text: str) -> None:
        """Make the models, runs and stores that a text speaks of, unless it or a text before it makes them."""
        for name in MODEL_FOLDERS:
            if name in text and not (self._folder / name).exists():
                write_model(self._folder / name)
        for name, command in PREPARED.items():
            made = any(f"{words}{name}" in text for words in MAKING)
            if name in text and not made and not Path(self._folder, placed(name, self._folder)).exists():
                self._prepare(command)
                self._run_command(command)

    def _run_command(self, command: str) -> None:
        words = luwu_words(placed(command, self._folder))
        if words is None:
            started = self._start(["bash", "-c", command])
        else:
            started = self._start([sys.executable, "-m", "luwu.cli", *self._smaller(words)])
        if words and words[0] in SERVING and "--terminal" not in words:
            self._open.callback(_stop, started)
            assert started.stdout is not None
            self._url = started.stdout.readline().strip()
            if not self._url:
                raise BlockError(f"{command}: expected its address, found none: {started.communicate()[1][-800:]}")
            return
        try:
            said, error = started.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            started.kill()
            raise BlockError(f"{command}: expected its end within {SECONDS:.0f} s") from None
        if started.returncode:
            found = f"found {started.returncode}: {said[-400:]}{error[-800:]}"
            raise BlockError(f"{command}: expected exit status 0, {found}")

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        return start_program(
            command, standbys=2 if "train" in command else 0, cwd=self._folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _smaller(self, words: list[str]) -> list[str]:
        """Return a command's arguments with the sizes of a test."""
        words = [SMALL_WORDS.get(word, word) for word in words]
        if words[0] == "train":
            self._runs += 1
            own = [] if "--run" in words else ["--run", f"runs/{self._runs}"]
            text = [] if "--data" in words else ["--data", "texts"]
            return [*words, *own, *text, *SMALL_RUN, *(() if "--model" in words else SMALL_GPT)]
        return [*words, *HERE.get(words[0], ())]


def run_blocks(blocks: Sequence[Block], folder: Path) -> dict[str, str]:
    """Run blocks, each page in a folder of its own in a folder that is empty; return what went wrong, by block."""
    failed = {}
    prepare(folder / "first")
    for page in dict.fromkeys(block.page for block in blocks):
        own = folder / page.replace("/", "-")
        shutil.copytree(folder / "first", own)
        with closing(Runner(own)) as runner:
            for block in (block for block in blocks if block.page == page):
                try:
                    runner.run(block)
                except Exception as error:
                    failed[block.name] = f"{type(error).__name__}: {error}"
    return failed


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
