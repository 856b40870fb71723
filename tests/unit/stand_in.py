"""Stands in for the Python that a launcher starts, and runs a given program as the template."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

PROGRAM = """
import os, signal, sys, time
from luwu.launch.forking import become_worker
prepared = []
{before}
def prepare():
    prepared.append(os.getpid())
    {prepare}
if not become_worker(prepare):
    sys.exit()
rank = int(os.environ["RANK"])
"""


def python_of(folder: Path, code: str, before: str = "", prepare: str = "pass") -> str:
    """Write a program for the forks of a template, and return the path of the Python that runs it.

    Args:
        folder: where they are written.
        code: run in each fork, where `rank` is its rank. before: run first, in the template. prepare: its imports.
    """
    program, script = folder / "program.py", folder / "python"
    program.write_text(PROGRAM.format(before=before, prepare=prepare) + textwrap.dedent(code))
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}"\n')
    script.chmod(0o755)
    return str(script)
