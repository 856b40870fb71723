"""Checks that the folders of native/ include each other downwards alone.

usage: python tools/include_order.py [FOLDER]

`ROOMS` has the folders from the lowest to the highest. A file may include files of its own folder and of those below.
Headers never include each other in a circle, and only the bindings know Python. Each line of output has the file, the
line, what is wrong and what to do. The exit status is 1 when there is such a line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "trace",
    "kernels",
    "store",
    "schedule",
    "step",
    "pipeline",
    "fabric/core",
    "fabric/shm",
    "fabric/tcp",
    "fabric/protocol",
    "fabric/udp",
    "standby",
    "switch",
    "device",
    "bindings",
)
PURE = {"fabric/protocol": ("pipeline", "fabric/shm", "fabric/tcp")}
"""Rooms that know no transport, and the lower rooms that they do without."""
DECIDING = ("step", "schedule", "fabric/protocol")
"""Rooms that decide and do nothing else: without lock, thread or clock."""
PYTHON_ROOM = "bindings"
SUFFIXES = {".h", ".cc"}

QUOTED = re.compile(r'\s*#\s*include\s+"([^"]+)"')
DOING_HEADER = re.compile(
    r"\s*#\s*include\s+<(atomic|chrono|condition_variable|future|mutex|shared_mutex|stop_token|thread)>"
)
PYTHON_HEADER = re.compile(r"\s*#\s*include\s+<(Python\.h|nanobind/[^>]+)>")


class Include(NamedTuple):
    """A line of a source file that includes another file of native/."""

    file: str
    line: int
    included: str


def room_of(file: str) -> str:
    """The folder of a file, as `ROOMS` names it."""
    return file.rpartition("/")[0]


def includes_of(sources: Mapping[str, str]) -> Iterator[Include]:
    """Every quoted include of the sources, which are texts by their path below native/."""
    for file, text in sources.items():
        for number, line in enumerate(text.splitlines(), 1):
            if found := QUOTED.match(line):
                yield Include(file, number, found[1])


def problems(sources: Mapping[str, str]) -> list[str]:
    """Return the lines that break the order, as `FILE:LINE: what is wrong; what to do`."""
    found = [_unknown_room(file) for file in sources if room_of(file) not in ROOMS]
    included = list(includes_of(sources))
    for include in included:
        if problem := _wrong_way(include):
            found.append(f"{include.file}:{include.line}: {problem}")
    found += _circles(included)
    for file, text in sources.items():
        for number, line in enumerate(text.splitlines(), 1):
            if problem := _wrong_header(room_of(file), line):
                found.append(f"{file}:{number}: {problem}")
    return found


def _wrong_header(room: str, line: str) -> str:
    """Return why a room may not include a header of the standard library or of Python; empty if it may."""
    if room != PYTHON_ROOM and (header := PYTHON_HEADER.match(line)):
        return f"includes <{header[1]}>, but only {PYTHON_ROOM} knows Python; move what needs it to {PYTHON_ROOM}"
    if room in DECIDING and (header := DOING_HEADER.match(line)):
        return f"includes <{header[1]}>, but {room} has no lock, thread or clock; let who calls it have them"
    return ""


def _unknown_room(file: str) -> str:
    room = room_of(file) or "native"
    return f"{file}:1: {room} is no room; move the file, or add its folder to ROOMS in tools/include_order.py"


def _wrong_way(include: Include) -> str | None:
    own, other = room_of(include.file), room_of(include.included)
    if own not in ROOMS:
        return None  # said already
    if other not in ROOMS:
        return f'includes "{include.included}", which is in no room; include files as "ROOM/NAME.h"'
    if ROOMS.index(other) > ROOMS.index(own):
        return (
            f'{own} includes "{include.included}" of {other}, a room above it; move what both need down, or declare '
            f"an interface in {own} that {other} implements"
        )
    if other in PURE.get(own, ()):
        return f'{own} includes "{include.included}", but it knows no transport; move what both need to fabric/core'
    return None


def _circles(included: list[Include]) -> list[str]:
    """Return a line for each include that closes a circle of files."""
    edges: dict[str, list[Include]] = {}
    for include in included:
        edges.setdefault(include.file, []).append(include)
    found: list[str] = []
    done: set[str] = set()

    def walk(file: str, path: list[str]) -> None:
        for include in edges.get(file, ()):
            if include.included in path:
                circle = [*path[path.index(include.included) :], include.included]
                found.append(
                    f"{include.file}:{include.line}: closes a circle of includes, {' -> '.join(circle)}; "
                    "move what they share to a file that both include"
                )
            elif include.included not in done:
                walk(include.included, [*path, include.included])
        done.add(file)

    for file in edges:
        if file not in done:
            walk(file, [file])
    return found


def read_sources(folder: Path) -> dict[str, str]:
    """The texts of all sources below a folder, by their path in it."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def main() -> int:
    """Prints what breaks the order; returns the exit status."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "native"
    found = problems(read_sources(folder))
    for problem in found:
        print(f"{folder.name}/{problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
