"""Names the places of the program that call a sync."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from functools import cache

from harness.disk.recorder import ROOT
from luwu import _native

_WRAPPERS = (
    "native/store/files.cc",
    "native/store/files.h",
    "native/store/stripe_files.h",
    "native/store/commit_file.h",
)
"""Sources that only pass a sync on: the place is where they are called."""

_KEEPS_NOTHING = {"native/store/disk_probe.cc": "measures a disk, and keeps nothing on it"}

_NATIVE_CALL = re.compile(r"(\.sync|\bsync_folder|\.sync_frozen)\(")
_PYTHON_CALL = re.compile(r"\b(os\.fsync|sync_folder)\(")


def line_of(site: str) -> str:
    """Return the source and line of a sync, from a site as the recorder notes it.

    Native sites are offsets in the module, innermost first, whose lines an editable build of LuWu knows.
    """
    if not site or not site[0].isdigit():
        frames = [frame.strip() for frame in site.split("<")]
        inner = next((frame for frame in frames if not frame.startswith("core.files.sync_folder")), "unknown")
        return f"src/luwu/{inner.split(':')[0].rsplit('.', 1)[0].replace('.', '/')}.py:{inner.rsplit(':', 1)[-1]}"
    lines = [line for offset in site.split(",") for line in _lines(int(offset))]
    return next(
        (line for line in lines if line.startswith("native/") and line.rsplit(":", 1)[0] not in _WRAPPERS), site
    )


@cache
def _lines(offset: int) -> list[str]:
    """The source lines of an address after a call, those of inlined functions first."""
    command = ["addr2line", "-i", "-e", _native.__file__, hex(offset - 1)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [_in_checkout(line.split(" ")[0]) for line in answer.splitlines()]


def _in_checkout(source: str) -> str:
    """Return a source of the core without the folder of its checkout, which is another one in a cached object."""
    _, found, name = source.rpartition("/native/")
    return f"native/{name}" if found else source


def lines_of(sites: Iterable[str]) -> list[str]:
    """Return the lines of some sites, each once, in order."""
    return sorted({line_of(site) for site in sites})


def calls_in_sources() -> list[str]:
    """Return the lines of all calls of a sync in the sources of the store, as `line_of` has them."""
    found = []
    for path in sorted(
        [*ROOT.glob("native/store/*.cc"), *ROOT.glob("src/luwu/store/*.py"), ROOT / "src/luwu/core/files.py"]
    ):
        name = str(path.relative_to(ROOT))
        if name in _WRAPPERS or name in _KEEPS_NOTHING:
            continue
        call = _NATIVE_CALL if path.suffix == ".cc" else _PYTHON_CALL
        inside_wrapper = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.startswith("def "):
                inside_wrapper = line.startswith("def sync_folder(")
            if call.search(line) and not inside_wrapper and not line.lstrip().startswith(("def ", "#", "//")):
                found.append(f"{name}:{number}")
    return found
