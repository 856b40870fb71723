"""Time of the XDP switch for a packet: adding one to a sum, completing a sum, copying down; by size and form.

The kernel runs the switch's own functions on packets (BPF_PROG_TEST_RUN), each one new, and says the time of a run; the
time that making them new takes is in it, and stands beside. Checksums are verified in all of them. What the kernel does
afterwards, sending and copying frames, is not measured here: see xdp_goodput.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import NotInstalledError, Row, arguments, native_file, result, run, table

NAME = "xdp_packet"
BAR = "adding a packet of 1 KiB of int32, its checksum verified, at most 150 ns"
UNIT = "ns"
MOST, BYTES = 150, 1024


def measured(calls: int) -> dict[tuple[str, str, int], int]:
    """Nanoseconds of each action, form and payload: the least of this number of calls, of 20,000 packets each."""
    program = native_file("luwu_xdp_packet", ["xdp"], "the XDP switch: install clang and libbpf-dev")
    command = [program, program.parent / "measure.bpf.o", str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalledError(f"no XDP here: {done.stderr.strip()}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(row["what"], row["form"], row["bytes"]): row["nanoseconds"] for row in rows}


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    nanoseconds = found["nanoseconds"]["aggregate int32 1024"]
    yield (
        "1 KiB of int32 verified and added inside the kernel",
        f"{nanoseconds} ns, {1024 / nanoseconds:.1f} GB/s of a processor",
        f"a program that does nothing {found['nanoseconds']['nothing int32 1024']} ns",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)

    def measure() -> dict[str, Any]:
        found = measured(options.effort(25, check=1))
        rows = [[what, form, payload, took, payload / took] for (what, form, payload), took in found.items()]
        table(["", "form", "bytes", "ns", "GB/s of a core"], rows)
        ours = found["aggregate", "int32", BYTES]
        details = {"nanoseconds": {f"{what} {form} {payload}": took for (what, form, payload), took in found.items()}}
        return result(
            NAME, ours=ours, peer=None, ratio=ours / MOST, bar=BAR, ok=ours <= MOST, unit=UNIT, details=details
        )

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
