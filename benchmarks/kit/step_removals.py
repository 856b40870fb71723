"""The step machine with one of its rules taken out: each in turn is compiled, and the histories or rows must notice."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kit.removals import ROOT, after, compile_commands, link_command, require_once, run
from kit.step_removal import Removal
from kit.step_rules import REMOVALS

STEP = ROOT / "native/step"
_TARGET = "luwu_step_machine"
_SECONDS = 300


def check_complete() -> None:
    """See that each removal's code stands in its file once."""
    for removal in REMOVALS:
        require_once(removal.name, removal.old, STEP / removal.file)


def noticed_by(removal: Removal | None, histories: int) -> str:
    """Name what notices that a rule is missing: "histories", "rows", "histories, rows", or nothing: "".

    `removal` None: the machine as it is, which nothing may complain of. The program of the histories has been built.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = _link(_compile(removal, folder), folder)
        checks = {"histories": ["1", str(histories)], "rows": ["rows"]}
        return ", ".join(name for name, words in checks.items() if not _passes([str(program), *words]))


def all_noticed(removals: tuple[Removal, ...], histories: int) -> dict[str, str]:
    """Take the rules out, one after the other on each processor, and return by name what noticed it."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = pool.map(lambda removal: noticed_by(removal, histories), removals)
        return {removal.name: by for removal, by in zip(removals, found, strict=True)}


def _compile(removal: Removal | None, folder: Path) -> dict[str, str]:
    """Compile the machine's sources that see the removal, as the native tests' build does.

    Returns the objects by those that they replace. The histories are linked as they are, though they saw the whole
    header: only the machine calls what a removal changes.
    """
    copies = folder / "step"
    shutil.copytree(STEP, copies)
    if removal is not None:
        file = copies / removal.file
        file.write_text(file.read_text().replace(removal.old, removal.new))
    one = removal is not None and removal.file.endswith(".cc")
    objects = {}
    for source in STEP.glob("*.cc"):
        if one and removal is not None and source.name != removal.file:
            continue
        command = next(words for words in compile_commands(source) if f"{_TARGET}.dir" in after(words, "-o"))
        replaced_object, compiled = after(command, "-o"), str(folder / f"{source.name}.o")
        objects[replaced_object] = compiled
        replaced = {str(source): str(copies / source.name), replaced_object: compiled, "-Werror": "-w"}
        command = [replaced.get(word, word) for word in command]
        first = next(index for index, word in enumerate(command) if word.startswith("-I"))
        run([*command[:first], f"-I{folder}", *command[first:]])
    return objects


def _link(objects: Mapping[str, str], folder: Path) -> Path:
    """Link the program of the histories with these objects in the place of others."""
    link = link_command(_TARGET)
    program = folder / _TARGET
    replaced = {**objects, after(link, "-o"): str(program)}
    run([replaced.get(word, word) for word in link])
    return program


def _passes(command: list[str]) -> bool:
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0
