"""Parts that all benchmarks share: arguments, sizes, the machine, and how a result is printed."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "benchmarks"
"""Folder of the programs; `ours` and `peers` in it have the programs of their child processes."""

STARTED = time.monotonic()
QUICK_SECONDS = 40.0  # --quick takes no more samples after this time; the rest of its 45 seconds is for ending
Value = TypeVar("Value")

Row = tuple[str, str, str]
"""A row of docs/figures.md: a question, LuWu's figure, and the peer's or the limit's."""


class BenchmarkError(Exception):
    """A side could not be measured; the message says why."""


class NotInstalledError(BenchmarkError):
    """A peer or a tool is not installed, or this machine does not permit what a program needs; the message names it.

    It fails a run that measures. A run with --check leaves that part out and says so.
    """


class Options(argparse.Namespace):
    """The options that a program was given; they decide how large and how long it measures."""

    quick: bool
    check: bool
    repeats: int
    folder: Path
    only_peer: bool

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.reduced = False
        self.left_out: list[str] = []

    def size(self, full: Value, *, quick: Value | None = None, check: Value) -> Value:
        """Choose a size that the bar names: numbers of workers, layers, elements. `quick`: the full size unless given.

        A run that got another than the full size decides nothing: `run` turns its `ok` into null.
        """
        chosen = self.effort(full, quick=quick, check=check)
        self.reduced = self.reduced or chosen != full
        return chosen

    def effort(self, full: Value, *, quick: Value | None = None, check: Value) -> Value:
        """Choose a size that the bar does not name: samples, warm-up, seconds."""
        if self.check:
            return check
        return quick if self.quick and quick is not None else full

    def seconds_left(self) -> float:
        """Return the seconds until --quick takes no more samples."""
        return STARTED + QUICK_SECONDS - time.monotonic()

    def peer_python(self, module: str = "torch") -> Path:
        """The Python that runs a peer. With --check it is this one, for peers that need no environment of their own.

        Raises NotInstalledError where there is none that has `module`.
        """
        if self.check:
            if importlib.util.find_spec(module) is None:
                raise NotInstalledError(f"{module} is not installed beside luwu")
            return Path(sys.executable)
        if not peers_python().exists():
            raise NotInstalledError(f"peers are not installed ({peers_python()} is missing): run tools/peers.sh")
        return peers_python()

    def leave_out(self, what: str, error: NotInstalledError) -> None:
        """Goes on without a part in a run with --check, and says so. Raises the error in any other run."""
        if not self.check:
            raise error
        print(f"{what} left out: {error}")
        self.left_out.append(f"{what}: {error}")


def arguments(description: str, argv: Sequence[str] | None = None) -> Options:
    """Parses --quick, --check, --repeats (default 3), --folder (for stores and peers' swap files) and --only-peer."""
    parser = argparse.ArgumentParser(description=description)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="about 45 seconds; ok is null where that does not decide it")
    how.add_argument("--check", action="store_true", help="smallest sizes, to see that it runs; ok is null, or false")
    parser.add_argument("--repeats", type=int, default=3, help="samples of each side, taken in turn (default: 3)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="folder on the disk to measure")
    parser.add_argument("--only-peer", action="store_true", help="measure the peer alone; the result is not ok")
    options = parser.parse_args(argv, namespace=Options())
    options.folder.mkdir(parents=True, exist_ok=True)
    return options


def _first_match(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "unknown")


def machine() -> dict[str, Any]:
    """This machine in words: processor, cores, memory (bytes), kernel, Python, vector sets, load, date."""
    flags = _first_match("/proc/cpuinfo", "flags").split()
    return {
        "processor": _first_match("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "vector_sets": [name for name in ("avx2", "avx512f", "avx512_bf16", "asimd") if name in flags],
        "kernel": platform.release(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def peers_python() -> Path:
    """The Python of the peers' environment (tools/peers.sh builds it); it may not exist."""
    return Path(os.environ.get("LUWU_PEERS_PYTHON", ROOT / "build" / "peers" / "bin" / "python"))


def native_file(name: str, tests: Sequence[str], missing: str) -> Path:
    """Return a file of the native tests' build, which is made where it is missing, with these tests run.

    Raises NotInstalledError, which says what is `missing`, where the build has no such file.
    """
    found = ROOT / "build" / "native" / name
    if not found.exists():
        print(f"{found.name} is not there yet: building the native tests, once; this takes minutes", flush=True)
        command = [ROOT / "tools" / "native_tests.sh", "native", "", *tests]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if not found.exists():
        raise NotInstalledError(f"the native tests were built without {missing}")
    return found


def require_tool(name: str) -> str:
    """Return the path of a command; raises NotInstalledError that names it where it is missing."""
    found = shutil.which(name)
    if found is None:
        raise NotInstalledError(f"{name} is not installed: apt-get install {name}")
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints rows under a header, columns aligned; floats with three significant digits."""
    cells = [list(header)] + [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def all_of(*verdicts: bool | None) -> bool | None:
    """Join verdicts: False where one is false, else None where one is not decided, else True."""
    if any(verdict is False for verdict in verdicts):
        return False
    return None if None in verdicts else True


def result(
    name: str, *, ours: float | None, peer: float | None, bar: str, ok: bool | None, unit: str, right: bool = True,
    ratio: float | None = None, details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A benchmark's result; `ratio` is ours / peer unless given, `bar` says in words what `ok` means.

    `right` tells whether everything holds that must hold at any size, such as equal bits; if not, `ok` is false in
    every run. `ok` is the rest of the bar, which only the sizes that the bar names can decide; None: not decided.
    """
    if ratio is None and ours is not None and peer:
        ratio = ours / peer
    return {
        "name": name, "ours": ours, "peer": peer, "ratio": ratio, "bar": bar, "ok": ok if right else False,
        "right": right, "unit": unit, "details": dict(details or {}), "machine": machine(),
    }  # fmt: skip


def emit(found: Mapping[str, Any]) -> None:
    """Prints the verdict for a person, then the result as one JSON object on the last line."""
    words = {True: "ok", False: "NOT OK", None: "not decided"}
    print(f"\n{found['name']}: {words[found['ok']]} (bar: {found['bar']})")
    print(json.dumps(found), flush=True)


def run(name: str, bar: str, unit: str, measure: Callable[[], Mapping[str, Any]], options: Options) -> int:
    """Runs a benchmark, prints its result, and returns the exit status: 0 unless it failed or missed its bar.

    `ok` becomes null (not decided) with --check, and where --quick measured other sizes than the bar's; false stays
    where something is wrong at any size. A SIGTERM ends it as Ctrl-C would, so that its children and files are cleaned
    up.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    kind = "check" if options.check else "quick" if options.quick else "full"
    nothing = {"ours": None, "peer": None, "bar": bar, "unit": unit}
    try:
        found = dict(measure())
        if found["right"] and (options.check or options.reduced):
            found["ok"] = None
    except NotInstalledError as error:
        print(f"{name}: {error}")
        options.left_out.append(str(error))
        found = result(name, ok=None if options.check else False, details={"error": str(error)}, **nothing)
    except BenchmarkError as error:
        print(f"{name}: {error}")
        found = result(name, ok=False, right=False, details={"error": str(error)}, **nothing)
    found |= {"sizes": kind, "left_out": options.left_out}
    emit(found)
    return 1 if found["ok"] is False else 0
