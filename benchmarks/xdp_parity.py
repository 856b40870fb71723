"""Training through a switch inside the kernel: the same bits as through one in user space, also with packets lost.

Both on the same machine, an Ethernet bridge with a port for every neighbour, with 4 workers on real text. Beside them
shared memory, whose losses may differ by the bound that network_parity computes from the fixed point of gradients.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.common import BenchmarkError, Row, arguments, result, run, table
from kit.network_training import Site, means
from network_parity import BITS, WORKERS, Bits, Comparison, Runs, bounds

NAME = "xdp_parity"
BAR = (
    "losses and stores through XDP bit for bit as through the user-space switch, without loss and with 2 % of all "
    "packets lost, int32 and int16; losses within the fixed-point bound of shared memory's"
)
UNIT = "relative difference of losses to shared memory"


class BothSwitches:
    """Runs through either switch of a site, and what each left: the losses' bits, and the store's digest."""

    def __init__(self, site: Site, runs: Runs) -> None:
        self._site, self._runs = site, runs
        self.sums: dict[str, int] = {}

    def through(self, switch: str, form: str, loss_seed: int | None = None) -> tuple[Bits, str]:
        """Make a run. Raises BenchmarkError where the kernel should have added and did not."""
        name = f"{switch}, {form}" + (", 2 % lost" if loss_seed is not None else "")
        self._site.in_kernel = switch == "XDP"
        found = self._runs.over_udp(name, self._runs.workers, form, loss_seed=loss_seed)
        self.sums[name] = self._site.sums_in_kernel
        if (self.sums[name] > 0) != self._site.in_kernel:
            raise BenchmarkError(f"{name}: {self.sums[name]} sums were made in the kernel")
        return found


def compare(
    site: Site, runs: Runs, steps: int, forms: Mapping[str, int]
) -> tuple[Comparison, dict[str, bool], dict[str, int]]:
    """Every form's losses beside shared memory's; which runs through XDP have user space's bits; sums in the kernel."""
    site.workers[0].send("reference", workers=runs.workers, steps=steps)
    magnitudes = site.workers[0].receive()["magnitudes"]
    local = runs.over_shared_memory("shared memory")
    both, comparison, same = BothSwitches(site, runs), Comparison(), {}
    for form, bits in forms.items():
        wanted = both.through("user space", form)
        found = both.through("XDP", form)
        same[form] = found == wanted
        same[f"{form}, 2 % lost"] = both.through("XDP", form, loss_seed=1) == wanted
        comparison.add(f"XDP, {form}", found[0], local, bounds(magnitudes, means(local), bits, runs.workers))
    return comparison, same, both.sums


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    same = "user space's bits" if all(found["same_bits"].values()) else "**other bits**"
    lost = sum(found["packets_lost"].values())
    yield (
        f"training through a switch inside the kernel, int32 and int16, without loss and with {lost} packets lost",
        f"{same}, losses {max(found['worst'].values()):.1e} from shared memory's",
        "-",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    workers, steps = options.size((WORKERS, 20), quick=(WORKERS, 6), check=(2, 2))
    forms = options.size(BITS, check={"int32": BITS["int32"]})
    layers, hidden = options.size((4, 128), quick=(4, 64), check=(1, 32))
    settings = {"shape": {"layers": layers, "hidden": hidden, "heads": 4, "seq": 64}, "rows": 2}

    def measure() -> dict[str, Any]:
        with (
            tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder,
            Site(Path(folder), workers, settings, bridge=True) as site,
        ):
            runs = Runs(site, Path(folder), steps)
            comparison, same, sums = compare(site, runs, steps, forms)
        table(["run", "largest relative difference", "bound at the end", "first loss", "last loss"], comparison.rows)
        shown = [
            [name, 1000 * seconds, sums.get(name, 0), runs.dropped_packets.get(name, 0)]
            for name, seconds in runs.seconds.items()
        ]
        table(["run", "ms per step", "sums made in the kernel", "packets lost"], shown)
        print(f"the same bits as through user space: {same}")
        lost = min(count for name, count in runs.dropped_packets.items() if name.endswith("lost"))
        details = {
            "same_bits": same, "worst": comparison.worst, "sums_in_kernel": sums, "seconds_per_step": runs.seconds,
            "packets_lost": runs.dropped_packets,
        }  # fmt: skip
        return result(
            NAME, ours=max(comparison.worst.values()), peer=None, bar=BAR, ok=lost > 0,
            right=all(same.values()) and comparison.ok, unit=UNIT, details=details,
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
