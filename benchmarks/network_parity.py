"""Training over UDP against shared memory: 4 workers, a switch and a server in network namespaces, on real text.

Every run has the same model, data and steps. The bound of a loss's difference comes from docs/protocol.md: the mean of
a gradient is off by at most 2^-k of the largest magnitude A in its group of 32 (k = bits - 1 - log2 of the workers),
and by fp32's own rounding, less than 2^-22 of A. AdamW moves an element by lr times a ratio in which the gradient's
error counts relative to the gradient, twice at most, so a step changes the loss, to the first order, by less than
2 lr (2^-k + 2^-22) times the sum of A over all elements. That sum is taken from a run of plain torch on the same data,
and added up from step to step. Parameters in bfloat16 may differ by one rounding: 2^-8.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.losses import within, worst_difference
from kit.model import ADAMW
from kit.network_training import Site, bits_of, bytes_at, digest_of, means
from kit.processes import Side, slowest

NAME = "network_parity"
BAR = (
    "losses within the fixed-point bound of shared memory's, floats bit for bit; runs without loss and with 2 % of all "
    "packets lost bit-identical, losses and stores; a server's traffic at N = 4 within 10 % of N = 1"
)
UNIT = "relative difference of losses"
WORKERS = 4
LOSS = 0.02
BITS = {"int32": 32, "int16": 16}
BFLOAT16_ROUNDING = 2.0**-8
TRAFFIC = 1.1

Bits = list[list[str]]


class Runs:
    """Runs on one site; each has a store of its own."""

    def __init__(self, site: Site, folder: Path, steps: int) -> None:
        self._site, self._folder, self._steps = site, folder, steps
        self.workers = len(site.workers)
        self._numbers = itertools.count()
        self.seconds: dict[str, float] = {}
        self.server_bytes: dict[str, float] = {}
        self.dropped_packets: dict[str, int] = {}

    def over_udp(
        self, name: str, workers: int, form: str = "int32", dtype: str = "float32", loss_seed: int | None = None
    ) -> tuple[Bits, str]:
        """Bits of the losses, and the store's digest."""
        store = self._folder / f"store-{next(self._numbers)}"
        links = [worker.host.link for worker in self._site.workers]
        with self._site.serving(store, workers, form):
            self._site.join(self._site.url, workers, dtype)
            for number, link in enumerate(links):
                if loss_seed is not None:
                    link.harm(seed=loss_seed + number, loss=LOSS)
            before = bytes_at(self._site.server), self._dropped()
            losses = self._train(name, workers)
            self.server_bytes[name] = (bytes_at(self._site.server) - before[0]) / self._steps
            self.dropped_packets[name] = self._dropped() - before[1]
            for link in links:
                link.harm()
            self._site.ask(workers, "leave")
        return losses, digest_of(store)

    def over_shared_memory(self, name: str, dtype: str = "float32") -> Bits:
        """Bits of the losses; the workers are the same processes in the same namespaces."""
        run = self._folder / f"local-{next(self._numbers)}"
        wanted = {"run": str(run), "workers": self.workers, "memory": "256MiB"}
        with Side("luwu server", "ours/server.py", wanted, threads=1) as server:
            server.wait_ready()
            self._site.join(str(run / "luwu.sock"), self.workers, dtype)
            losses = self._train(name, self.workers)
            self._site.ask(self.workers, "leave")
        return losses

    def _train(self, name: str, workers: int) -> Bits:
        answers = self._site.ask(workers, "train", to=self._steps)
        self.seconds[name] = statistics.median(answers[0]["seconds"][1:])
        return bits_of(answers)

    def _dropped(self) -> int:
        return sum(
            link.counts(towards=end.node.name)["dropped"]
            for link in (worker.host.link for worker in self._site.workers)
            for end in (link.a, link.b)
        )


def bounds(magnitudes: list[float], losses: list[float], bits: int, workers: int) -> list[float]:
    """The largest relative difference of each step's loss; see above."""
    error = 2.0 ** -(bits - 1 - (workers - 1).bit_length()) + 2.0**-22
    moved = [2 * ADAMW["lr"] * error * magnitude for magnitude in magnitudes]
    before = [0.0, *itertools.accumulate(moved)]
    return [2.0**-22 + change / loss for change, loss in zip(before, losses, strict=False)]


def over_gloo(settings: dict[str, Any], site: Site, steps: int) -> float:
    """Seconds of a step of DDP in the workers' namespaces."""
    wanted = {**settings, "steps": steps, "warm_up": 1, "checkpoint": True}
    return slowest(site.run_group("peers/ddp_train.py", wanted), "seconds")


class Comparison:
    """Losses beside those they should be; `ok` while every one is within its limit."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.worst: dict[str, float] = {}
        self.ok = True

    def add(self, name: str, found: Bits, base: Bits, limits: list[float]) -> None:
        """Add one run; a limit of nothing asks for the same bits of all ranks."""
        losses, wanted = means(found), means(base)
        differences = [abs(a - b) / b for a, b in zip(losses, wanted, strict=True)]
        self.worst[name] = worst_difference(losses, wanted)
        kept = all(a <= b for a, b in zip(differences, limits, strict=True))
        self.ok = self.ok and kept and (any(limits) or found == base)
        self.rows.append([name, f"{self.worst[name]:.2e}", f"{limits[-1]:.2e}", losses[0], losses[-1]])


def compare(site: Site, runs: Runs, steps: int, repeats: int) -> tuple[Comparison, bool, float]:
    """All runs: how they compare, whether those that must have the same bits have, and int32's bound at the end."""
    site.workers[0].send("reference", workers=runs.workers, steps=steps)
    magnitudes = site.workers[0].receive()["magnitudes"]
    local = runs.over_shared_memory("shared memory")
    found = []
    for number in range(repeats):
        again = " again" if number else ""
        found.append(runs.over_udp(f"int32{again}", runs.workers))
        found.append(runs.over_udp(f"int32, 2 % lost{again}", runs.workers, loss_seed=1 + 100 * number))
    runs.over_udp("int32, N = 1", 1)
    limits = {form: bounds(magnitudes, means(local), bits, runs.workers) for form, bits in BITS.items()}
    comparison = Comparison()
    comparison.add("int32", found[0][0], local, limits["int32"])
    comparison.add("int16", runs.over_udp("int16", runs.workers, "int16")[0], local, limits["int16"])
    comparison.add("float32", runs.over_udp("float32", runs.workers, "float32")[0], local, [0.0] * steps)
    low = runs.over_shared_memory("shared memory, bfloat16", "bfloat16")
    over_udp = runs.over_udp("int32, bfloat16", runs.workers, dtype="bfloat16")[0]
    comparison.add("int32, bfloat16", over_udp, low, [BFLOAT16_ROUNDING] * steps)
    return comparison, all(other == found[0] for other in found), limits["int32"][-1]


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    worst = found["worst"]
    same = "the same bits" if found["bit_identical_runs"] else "**other bits**"
    yield (
        "losses over UDP and a switch, 4 workers",
        f"within {within(worst['int32'])}, {within(worst['int16'])} as int16; with 2% of packets lost: {same}",
        "shared memory",
    )
    milliseconds = {name: f"{1000 * seconds:.0f} ms" for name, seconds in found["seconds_per_step"].items()}
    yield (
        "a step over UDP and a switch, 4 workers, all on this machine",
        milliseconds["int32"],
        f"shared memory {milliseconds['shared memory']}; DDP over gloo {milliseconds['DDP over gloo']}",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    workers, steps = options.size((WORKERS, 20), quick=(WORKERS, 6), check=(2, 2))
    shape = {"layers": options.size(4, check=1), "hidden": options.size(128, quick=64, check=32), "heads": 4, "seq": 64}
    settings = {"shape": shape, "rows": 2}

    def measure() -> dict[str, Any]:
        with (
            tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder,
            Site(Path(folder), workers, settings) as site,
        ):
            runs = Runs(site, Path(folder), steps)
            comparison, same, limit = compare(site, runs, steps, repeats=options.effort(2, quick=1, check=1))
            runs.seconds["DDP over gloo"] = over_gloo(settings, site, steps)
        table(["form", "largest relative difference", "bound at the end", "first loss", "last loss"], comparison.rows)
        shown = [
            [name, 1000 * seconds, runs.server_bytes.get(name, 0.0) / 1e6, runs.dropped_packets.get(name, 0)]
            for name, seconds in runs.seconds.items()
        ]
        table(["run", "ms per step", "MB per step at the server", "packets lost"], shown)
        traffic = runs.server_bytes["int32"] / runs.server_bytes["int32, N = 1"]
        print(f"same bits: {same}; the server's traffic at N = 4 is {traffic:.3f} of that at N = 1")
        details = {
            "worst": comparison.worst, "bit_identical_runs": same, "within_bounds": comparison.ok,
            "traffic_ratio": traffic, "server_bytes_per_step": runs.server_bytes, "seconds_per_step": runs.seconds,
            "packets_lost": runs.dropped_packets,
        }  # fmt: skip
        lost = runs.dropped_packets["int32, 2 % lost"]
        return result(
            NAME, ours=comparison.worst["int32"], peer=limit, bar=BAR, ok=lost > 0 and traffic <= TRAFFIC,
            right=same and comparison.ok, unit=UNIT, details=details,
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
