"""Compiling and linking a file of the native tests again, with a piece taken out, as their build does it."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/native"


class RemovalError(Exception):
    """A removal does not fit the code, or what it makes cannot be compiled."""


def require_once(name: str, old: str, path: Path) -> None:
    """Raise RemovalError unless the code of the removal `name` stands in a file once."""
    found = path.read_text().count(old)
    if found != 1:
        raise RemovalError(f"{name}: expected {old!r} once in {path}, found {found}")


def compile_commands(source: Path) -> list[list[str]]:
    """Return the commands that compile a source, one for each target that has it."""
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    return [shlex.split(entry["command"]) for entry in entries if entry["file"] == str(source)]


def link_command(target: str) -> list[str]:
    """Return the command that links a target."""
    listing = subprocess.run(
        ["ninja", "-C", str(BUILD), "-t", "commands", target], capture_output=True, text=True, check=True
    )
    return shlex.split(listing.stdout.splitlines()[-1].removeprefix(": && ").removesuffix(" && :"))


def after(command: list[str], flag: str) -> str:
    """Return the word after a flag."""
    return command[command.index(flag) + 1]


def run(command: list[str]) -> None:
    """Run a compiler or a linker; raises RemovalError when it fails."""
    ended = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RemovalError(f"{command[0]} failed: {ended.stderr[-2000:]}")
