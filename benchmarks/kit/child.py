"""Messages of a measured child process to the benchmark that started it: one JSON object a line, on request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

Reply = Mapping[str, Any]


def take_stdout() -> TextIO:
    """Keeps standard output for replies: whatever a library prints goes to standard error from now on."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return replies


def settings() -> dict[str, Any]:
    """The settings the benchmark passed: one JSON object as the only argument."""
    return json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}


def serve(replies: TextIO, sample: Callable[[], Reply], final: Callable[[], Reply] | None = None) -> None:
    """Says that it is ready, answers every line on standard input with a sample, and ends with `final`."""
    replies.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        replies.write(json.dumps(sample()) + "\n")
    replies.write(json.dumps(final() if final else {}) + "\n")
