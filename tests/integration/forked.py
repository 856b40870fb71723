"""Programs of a test that are forks of one process, which has imported torch: a fork is there in milliseconds."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from luwu.core.room import NO_WAIT
from luwu.launch.template import Fork, Template

PAUSED = "paused\n"
BEGIN = """
import json, os, socket, sys, torch, luwu
from luwu.launch.forking import become_worker
from luwu.session.local import join
if not become_worker(lambda: None):
    sys.exit()
test = socket.socket(fileno=int(os.environ["LUWU_REPORT_DESCRIPTOR"]))
given = json.loads(test.makefile().readline())
rank = int(os.environ["RANK"])
os.dup2(os.open(given["errors"], os.O_WRONLY), 2)
def wait_for_test():
    print("paused", flush=True)
    test.recv(1)
"""
"""First lines of a program: `given` is what `Programs.start` was given, `wait_for_test` pauses until `go_on`."""


class Program:
    """A fork, its output, and the file of its errors."""

    def __init__(self, fork: Fork, output: int, own: socket.socket, errors: Path) -> None:
        self.process = fork
        self.errors = errors
        self._output = os.fdopen(output)
        self._own = own

    def lines_until_pause(self) -> list[str]:
        """Return the lines before its next pause; fails where it ends before."""
        lines = []
        while (line := self._output.readline()) != PAUSED:
            assert line, (self.process.wait(), lines)
            lines.append(line.rstrip())
        return lines

    def go_on(self) -> None:
        """End its pause."""
        self._own.send(b".")

    def lines(self) -> list[str]:
        """Wait for its end and return the lines that are left."""
        with self._output, self._own:
            lines = self._output.read().splitlines()
        self.process.wait()
        return lines


class Programs:
    """Starts forks that run one program, which begins with `BEGIN`."""

    def __init__(self, template: Template, folder: Path) -> None:
        self._template = template
        self._folder = folder
        self._started: list[Program] = []

    def start(self, rank: int, **given: Any) -> Program:
        """Start one with its rank, and with something that JSON can hold."""
        output, writing = os.pipe()
        own, reports = socket.socketpair()
        with reports:
            fork = self._template.fork(rank, writing, reports.fileno())
        os.close(writing)
        errors = self._folder / f"errors-{len(self._started)}"
        errors.touch()
        own.sendall(json.dumps(given | {"errors": str(errors)}).encode() + b"\n")
        self._started.append(Program(fork, output, own, errors))
        return self._started[-1]

    def kill(self) -> None:
        """Kill those that have not ended."""
        for program in self._started:
            program.process.kill()


@contextmanager
def programs(text: str, folder: Path) -> Iterator[Programs]:
    """Import what the program needs once; yield what starts it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program_of_a_test.py").write_text(BEGIN + text)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"PYTHONPATH": path}
    template = Template("program_of_a_test", folder, folder / "template.log", environment, NO_WAIT)
    try:
        yield Programs(template, folder)
    finally:
        template.kill()
