"""Training with a model's blocks over 1, 2 and 4 servers whose links limit it: how much several of them help.

Two workers on links that are wide enough for all servers. The model, data and steps are the same for every number of
servers, and over TCP so must be the bits of all losses.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.network_training import Site, bits_of, bytes_at

NAME = "network_servers"
BAR = "with two servers a step at least 1.6x as fast as with one, with four 2.4x; over TCP the same bits"
LEAST = {2: 1.6, 4: 2.4}
SERVERS = (1, 2, 4)
WORKERS = 2
RATE_BITS = 100e6  # of a server's link
TRANSPORTS = ("tcp", "udp")


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for transport, times in found["seconds_per_step"].items():
        several = ", ".join(
            f"{servers} servers {1000 * seconds:.0f} ms" for servers, seconds in times.items() if servers != "1"
        )
        yield (
            f"a step over {transport.upper()}, servers with links of {found['rate_bits'] / 1e6:.0f} Mb/s",
            several,
            f"one server {1000 * times['1']:.0f} ms",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    steps = options.effort(8, quick=4, check=2)
    layers, hidden = options.size((8, 256), quick=(8, 128), check=(1, 32))
    shape = {"layers": layers, "hidden": hidden, "heads": 4, "seq": 32}
    counts = options.size(SERVERS, check=SERVERS[:2])

    def measure() -> dict[str, Any]:
        seconds: dict[str, dict[int, float]] = {transport: {} for transport in TRANSPORTS}
        moved: dict[str, dict[int, list[float]]] = {transport: {} for transport in TRANSPORTS}
        bits: dict[str, set[str]] = {transport: set() for transport in TRANSPORTS}
        with (
            tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder,
            Site(Path(folder), WORKERS, {"shape": shape, "rows": 1}, servers=counts[-1], wired=False) as site,
        ):
            for host in site.servers:
                host.link.limit(RATE_BITS, latency_seconds=0.1)
            for transport in TRANSPORTS:
                for servers in counts:
                    place = Path(folder) / f"{transport}-{servers}"
                    with site.sharing(place, WORKERS, servers, transport) as url:
                        site.join(url, WORKERS)
                        before = [bytes_at(host) for host in site.servers[:servers]]
                        answers = site.ask(WORKERS, "train", to=steps)
                        after = [bytes_at(host) for host in site.servers[:servers]]
                        site.ask(WORKERS, "leave")
                    seconds[transport][servers] = statistics.median(answers[0]["seconds"][1:])
                    moved[transport][servers] = [(b - a) / steps for a, b in zip(before, after, strict=True)]
                    bits[transport].add(str(bits_of(answers)))
        rows = [
            [
                transport,
                servers,
                1000 * found,
                times[1] / found,
                ", ".join(f"{b / 1e6:.1f}" for b in moved[transport][servers]),
            ]
            for transport, times in seconds.items()
            for servers, found in times.items()
        ]
        table(["transport", "servers", "ms per step", "times one", "MB per step at each"], rows)
        gains = {
            transport: {servers: times[1] / times[servers] for servers in LEAST if servers in times}
            for transport, times in seconds.items()
        }
        same = len(bits["tcp"]) == 1
        print(f"the same bits over TCP: {same}")
        ok = all(found >= LEAST[servers] for gain in gains.values() for servers, found in gain.items())
        details = {
            "rate_bits": RATE_BITS, "seconds_per_step": seconds, "gains": gains, "bytes_per_step": moved,
            "same_bits": same,
        }  # fmt: skip
        times = seconds["tcp"]
        return result(
            NAME, ours=times[2], peer=times[1], ratio=gains["tcp"][2], bar=BAR, ok=ok, right=same, unit="seconds",
            details=details,
        )  # fmt: skip

    return run(NAME, BAR, "seconds", measure, options)


if __name__ == "__main__":
    sys.exit(main())
