"""Processes inside a namespace: their output is kept, and they end with the network."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.network.errors import NetworkError
from harness.warm import start_program

GRACE_SECONDS = 30.0
TAIL_CHARACTERS = 4000


class Process:
    """A process of its own group, with one log for output and errors."""

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.log = log
        with log.open("wb") as output:
            self._process = start_program(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id, which is that of its group, too."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Everything it has written so far."""
        return self.log.read_text(errors="replace")

    def report(self) -> str:
        """Return the command, its end, and the end of its output."""
        state = "running" if self.returncode is None else f"exit code {self.returncode}"
        return f"-- {self.name}: {shlex.join(self.arguments)} ({state})\n{self.output()[-TAIL_CHARACTERS:]}"

    def wait(self, timeout_seconds: float = 90.0) -> int:
        """Wait until it ends; returns its exit code.

        Raises:
            NetworkError: it did not end in time; the text has its output.
        """
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise NetworkError(f"not finished within {timeout_seconds} s\n{self.report()}") from error

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        if self.returncode is None:
            os.killpg(self.pid, number)

    def stop(self) -> int:
        """End it, by force when it takes too long; returns its exit code."""
        self.signal(signal.SIGTERM)
        try:
            return self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            return self._process.wait()
