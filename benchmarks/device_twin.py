"""The worker's tests on a simulated GPU: the same gradients, bit for bit, as on the CPU, and every wait is needed.

The tests of the worker run twice, on the CPU and on the twin, and note a hash of all gradients that are pushed. Then
each wait and each event of the copy engine is taken away in turn, and the native tests must notice each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import ROOT, BenchmarkError, NotInstalledError, arguments, result, run, table
from ours.device_removals import REMOVALS, Removal, RemovalError, check_complete, is_reported

NAME = "device_twin"
BAR = "every test of the worker has the CPU's gradients, bit for bit, and every removed wait is reported"
UNIT = "of the removed waits reported"
WHOLE = Removal("nothing", "// order: the block is read after its copy", "")
SEEDS = 6


def pushed(files: list[str], folder: Path, *, device: bool) -> dict[str, tuple[int, str]]:
    """By test, how many gradients its workers pushed, and a hash of them all."""
    record = folder / f"{device}.jsonl"
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "300", "--record-gradients",
        str(record), *(["--simulated-device"] if device else []), *files,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise BenchmarkError(f"tests failed{' on the device' if device else ''}:\n{ended.stdout[-3000:]}")
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
    if not (ROOT / "build/native/tests/native/libluwu_twin.so").exists():
        raise NotInstalledError("the native tests were built without the simulated device: install liburing-dev")


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    files = test_files(options.size(None, quick=["test_worker_training"], check=["test_worker_training"]))
    if options.check:
        files = [f"{file}::test_language_model" for file in files]
    removals = options.size(REMOVALS, quick=REMOVALS[:3], check=REMOVALS[:1])

    def measure() -> dict[str, Any]:
        build()
        with tempfile.TemporaryDirectory() as folder:
            host, device = (pushed(files, Path(folder), device=device) for device in (False, True))
        both = host.keys() & device.keys()
        different = sorted(test for test in both if host[test] != device[test])
        try:
            check_complete()
            if not options.check and is_reported(WHOLE, SEEDS):
                raise BenchmarkError("the native tests of the device fail with nothing removed")
            reported = {removal.name: is_reported(removal, SEEDS) for removal in removals}
        except RemovalError as error:
            raise BenchmarkError(str(error)) from error
        table(["removed", "reported"], [[name, found] for name, found in reported.items()])
        gradients = sum(host[test][0] for test in both)
        print(f"{len(both) - len(different)} of {len(both)} tests, {gradients} gradients: the CPU's bits")
        print("\n".join(f"other bits: {test}" for test in different))
        right = not different and all(reported.values()) and len(both) > 0
        details = {"tests": len(both), "gradients": gradients, "different": different, "reported": reported}
        ours = sum(reported.values()) / len(reported)
        return result(
            NAME, ours=ours, peer=None, ratio=ours, bar=BAR, ok=right, unit=UNIT, right=right, details=details
        )

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
