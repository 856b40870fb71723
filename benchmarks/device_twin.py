"""The worker's tests on a simulated GPU: the same gradients, bit for bit, as on the CPU, and every wait is needed.

The tests of the worker run three times, on the CPU, on the twin, and on the twin with some blocks that stay there, and
note a hash of all gradients that are pushed. Then each wait and each event of the copy engine is taken away in turn,
and the native tests must notice each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.common import ROOT, BenchmarkError, NotInstalledError, Row, arguments, result, run, table
from kit.device_removals import REMOVALS, Removal, check_complete, is_reported
from kit.removals import RemovalError

NAME = "device_twin"
BAR = "every test of the worker has the CPU's gradients, bit for bit, and every removed wait is reported"
UNIT = "of the removed waits reported"
WHOLE = Removal("nothing", "// order: the block is read after its copy", "")
SEEDS = 6
HOST: tuple[str, ...] = ()
DEVICE = ("--simulated-device",)
KEEPING = ("--simulated-device", "--device-memory", "24KiB")
"""Options of pytest. The models of the tests have blocks of a few KiB: some of them fit."""


def pushed(files: list[str], options: Sequence[str], record: Path) -> dict[str, tuple[int, str]]:
    """Run the tests, and return by test how many gradients its workers pushed, and a hash of them all."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "300", "--record-gradients",
        str(record), *options, *files,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise BenchmarkError(f"tests failed with {' '.join(options) or 'no option'}:\n{ended.stdout[-3000:]}")
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    return {row["test"]: (row["pushes"], row["digest"]) for row in rows}


def test_files(names: list[str] | None) -> list[str]:
    """The worker's tests, or those of these files."""
    found = sorted((ROOT / "tests/unit").glob("test_worker_*.py"))
    found += [ROOT / "tests/unit" / f"test_{name}.py" for name in ("loss_scale", "models_lora", "block_dtypes")]
    return [str(path) for path in found if names is None or path.stem in names]


def build() -> None:
    """Build the native tests, whose library is the simulated device."""
    command = [ROOT / "tools/native_tests.sh", "native", "", "device", "device_ring"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise BenchmarkError(f"the native tests of the device fail:\n{ended.stdout[-3000:]}")
    if not (ROOT / "build/native/harness/native/libluwu_twin.so").exists():
        raise NotInstalledError("the native tests were built without the simulated device: install liburing-dev")


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    different, reported = found["different"], found["reported"]
    bits = f"**other bits in {len(different)}**" if different else "the CPU's bits"
    yield (
        f"{found['tests']} tests of the worker on a simulated GPU, {found['gradients']:,} gradients",
        f"{bits}; {sum(reported.values())} of {len(reported)} removed waits reported",
        "the CPU; all",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    files = test_files(options.size(None, quick=["test_worker_training"], check=["test_worker_training"]))
    if options.check:
        files = [f"{file}::test_language_model" for file in files]
    sides = options.size((DEVICE, KEEPING), check=(DEVICE,))
    removals = options.size(REMOVALS, quick=REMOVALS[:3], check=REMOVALS[:1])

    def measure() -> dict[str, Any]:
        build()
        with tempfile.TemporaryDirectory() as folder:
            host = pushed(files, HOST, Path(folder) / "host")
            pairs = {}  # of gradients on a device and on the host
            for number, side in enumerate(sides):
                found = pushed(files, side, Path(folder) / f"device-{number}")
                pairs |= {(*side, test): (found[test], host[test]) for test in host.keys() & found.keys()}
        different = sorted(" ".join(test) for test, (found, expected) in pairs.items() if found != expected)
        try:
            check_complete()
            if not options.check and is_reported(WHOLE, SEEDS):
                raise BenchmarkError("the native tests of the device fail with nothing removed")
            reported = {removal.name: is_reported(removal, SEEDS) for removal in removals}
        except RemovalError as error:
            raise BenchmarkError(str(error)) from error
        table(["removed", "reported"], [[name, found] for name, found in reported.items()])
        gradients = sum(count for (count, _), _ in pairs.values())
        print(f"{len(pairs) - len(different)} of {len(pairs)} tests, {gradients} gradients: the CPU's bits")
        print("\n".join(f"other bits: {test}" for test in different))
        right = not different and all(reported.values()) and len(pairs) > 0
        details = {"tests": len(pairs), "gradients": gradients, "different": different, "reported": reported}
        ours = sum(reported.values()) / len(reported)
        return result(
            NAME, ours=ours, peer=None, ratio=ours, bar=BAR, ok=right, unit=UNIT, right=right, details=details
        )

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
