"""Programs of a test that pause where it wants; each is there in milliseconds, a fork of the warm process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.warm import start_program

PAUSED = "paused\n"
BEGIN = """
import json, os, sys, torch, luwu
from luwu.session.local import join
given = json.loads(sys.argv[1])
rank = given["rank"]
def wait_for_test():
    print("paused", flush=True)
    sys.stdin.readline()
"""
"""First lines of a program: `given` is what `Programs.start` was given, `wait_for_test` pauses until `go_on`."""


class Program:
    """A process, its output, and the file of its errors."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process = process
        self.errors = errors
        assert process.stdin is not None and process.stdout is not None
        self._input, self._output = process.stdin, process.stdout

    def lines_until_pause(self) -> list[str]:
        """Return the lines before its next pause; fails where it ends before."""
        lines = []
        while (line := self._output.readline()) != PAUSED:
            assert line, (self.process.wait(), lines)
            lines.append(line.rstrip())
        return lines

    def go_on(self) -> None:
        """End its pause."""
        self._input.write("\n")
        self._input.flush()

    def lines(self) -> list[str]:
        """Wait for its end and return the lines that are left."""
        with self._output, self._input:
            lines = self._output.read().splitlines()
        self.process.wait()
        return lines


class Programs:
    """Starts processes that run one program, which begins with `BEGIN`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Program] = []

    def start(self, rank: int, **given: Any) -> Program:
        """Start one with its rank, and with something that JSON can hold."""
        errors = self._folder / f"errors-{len(self._started)}"
        path = os.pathsep.join(filter(None, [str(self._folder), os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "program_of_a_test", json.dumps({"rank": rank, **given})]
        with errors.open("w") as told:
            process = start_program(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True,
                env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip
        self._started.append(Program(process, errors))
        return self._started[-1]

    def kill(self) -> None:
        """Kill those that have not ended."""
        for program in self._started:
            program.process.kill()


@contextmanager
def programs(text: str, folder: Path) -> Iterator[Programs]:
    """Write the program; yield what starts it, and kill at the end what still runs."""
    (folder / "program_of_a_test.py").write_text(BEGIN + text)
    started = Programs(folder)
    try:
        yield started
    finally:
        started.kill()
