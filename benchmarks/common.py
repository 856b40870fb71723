"""What every benchmark shares: arguments, the machine, alternating medians, and how a result is printed."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class BenchmarkError(Exception):
    """A side could not be measured; the message says why."""


def arguments(description: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses --quick, --repeats (default 3), --folder (where stores and peers' swap files go) and --only-peer."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, ends within 45 seconds")
    parser.add_argument("--repeats", type=int, default=3, help="samples of each side, taken in turn (default: 3)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench", help="folder on the disk to measure")
    parser.add_argument("--only-peer", action="store_true", help="measure the peer alone; the result is not ok")
    options = parser.parse_args(argv)
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


def median_alternating(sides: Mapping[str, Callable[[], float]], repeats: int = 3) -> dict[str, float]:
    """Calls every side in turn, `repeats` (at least three) times over, and returns the median of each."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(max(3, repeats)):
        for name, measure in sides.items():
            values[name].append(measure())
    return {name: statistics.median(found) for name, found in values.items()}


def peers_python() -> Path:
    """The Python of the peers' environment (tools/peers.sh builds it); it may not exist."""
    return Path(os.environ.get("LUWU_PEERS_PYTHON", ROOT / "build" / "peers" / "bin" / "python"))


def require_peers() -> Path:
    """The peers' Python, or a BenchmarkError that says how to get it."""
    if not peers_python().exists():
        raise BenchmarkError(f"peers are not installed ({peers_python()} is missing): run tools/peers.sh")
    return peers_python()


def require_tool(name: str) -> str:
    """Path of a command, or a BenchmarkError that names it."""
    found = shutil.which(name)
    if found is None:
        raise BenchmarkError(f"{name} is not installed: apt-get install {name}")
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints rows under a header, columns aligned; floats with three significant digits."""
    cells = [list(header)] + [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def result(
    name: str, *, ours: float | None, peer: float | None, bar: str, ok: bool, unit: str,
    ratio: float | None = None, details: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A benchmark's result; `ratio` is ours / peer unless given, `bar` says in words what `ok` means."""
    if ratio is None and ours is not None and peer:
        ratio = ours / peer
    return {
        "name": name, "ours": ours, "peer": peer, "ratio": ratio, "bar": bar, "ok": ok, "unit": unit,
        "details": dict(details or {}), "machine": machine(),
    }  # fmt: skip


def emit(found: Mapping[str, Any]) -> None:
    """Prints the verdict for a person, then the result as one JSON object on the last line."""
    print(f"\n{found['name']}: {'ok' if found['ok'] else 'NOT OK'} (bar: {found['bar']})")
    print(json.dumps(found), flush=True)


def run(name: str, bar: str, unit: str, measure: Callable[[], Mapping[str, Any]]) -> int:
    """Runs a benchmark, prints its result, and returns the exit status: 0 when the bar is met.

    A SIGTERM ends it as Ctrl-C would, so that its children and files are cleaned up.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        found = measure()
    except BenchmarkError as error:
        print(f"{name}: {error}")
        found = result(name, ours=None, peer=None, bar=bar, ok=False, unit=unit, details={"error": str(error)})
    emit(found)
    return 0 if found["ok"] else 1
