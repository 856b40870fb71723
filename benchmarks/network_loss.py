"""Goodput over UDP on links that lose packets at random, against the same links without loss; nothing may be wrong.

Two workers; a wire with a seed on each worker's link loses datagrams both ways. Wires need offloads off, so every rate
is compared with no loss in the same set-up. What is pulled after the losses must have the bits that it has without.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import Options, Row, arguments, result, run, table
from kit.network_side import Hosts, NetworkSide, difference, lost
from kit.sampling import Bar, Comparison, compare

NAME = "network_loss"
BAR = "at 0.1, 1, 5 % loss at least 90, 70, 30 % of the goodput without; the same bits; nothing hangs"
SHARES = {0.0: 1.0, 0.001: 0.9, 0.01: 0.7, 0.05: 0.3}  # of the goodput without loss, by loss
KINDS = {"push": (True, False), "pull": (False, True), "both": (True, True)}
WORKERS = 2
BLOCKS, ELEMENTS = 16, 1 << 17
RATE_BITS = 100e6  # so that the links limit, and not the wires' processes
SEED = 20
MTU = 9000  # fewer frames for the wires' processes


def side_of(kind: str, loss: float) -> str:
    """The name of a sample."""
    return f"{kind} at {loss:.1%}"


BARS = {
    (kind, loss): Bar(side_of(kind, loss), side_of(kind, 0.0), least)
    for kind in KINDS for loss, least in SHARES.items() if loss
}  # fmt: skip


def measure_losses(options: Options, rounds: int) -> tuple[Comparison, list[str], dict[float, Any]]:
    """Bytes a second by kind and loss, what came back wrong, and the participants' counts by loss."""
    trouble: dict[float, Any] = {loss: {} for loss in SHARES}
    wrong: list[str] = []
    blocks = [ELEMENTS] * BLOCKS
    with (
        Hosts(WORKERS, mtu=MTU, wired=True) as hosts,
        NetworkSide(hosts, blocks, echo=False) as alone,
        NetworkSide(hosts, blocks, echo=True) as together,
    ):
        hosts.limit(RATE_BITS)
        for side in (alone, together):
            side.exchange(push=True, pull=True)
        expected = together.digests()
        seeds = itertools.count(SEED)

        def take_round() -> dict[str, float]:
            seed, values = next(seeds), {}
            for loss in SHARES:
                hosts.harm(loss, seed)
                before = lost(alone.stats())
                for kind, (push, pull) in KINDS.items():
                    values[side_of(kind, loss)] = alone.goodput(push=push, pull=pull, rounds=rounds)
                after = lost(alone.stats())
                trouble[loss] = difference(after, {name: before.get(name, 0) for name in after})
                together.exchange(push=True, pull=True)
                if together.digests() != expected or len(expected) != 1:
                    wrong.append(f"{loss:.1%}, seed {seed}")
            return values

        compared = compare(options, take_round, list(BARS.values()), rounds=max(3, options.repeats))
    return compared, wrong, trouble


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    least = {loss: min(kind[loss] for kind in found["shares"].values()) for loss in found["counts"]}
    lossy = [loss for loss in least if float(loss) > 0]
    yield (
        f"goodput with {', '.join(f'{100 * float(loss):g}' for loss in lossy)} % of packets lost",
        ", ".join(f"{least[loss]:.0%}" for loss in lossy),
        "without loss",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    rounds = options.size(6, quick=1, check=1)  # in a short run, the last lost packet costs a larger share of the time

    def measure() -> dict[str, Any]:
        compared, wrong, trouble = measure_losses(options, rounds)
        goodput = {kind: {loss: compared.medians[side_of(kind, loss)] for loss in SHARES} for kind in KINDS}
        shares = {kind: {loss: compared.ratio(BARS[kind, loss]) if loss else 1.0 for loss in SHARES} for kind in KINDS}
        rows = [
            [f"{loss:.1%}", *(found[loss] / 1e6 for found in goodput.values())]
            + [f"{found[loss]:.0%}" for found in shares.values()]
            for loss in SHARES
        ]
        table(["loss", *(f"{kind} MB/s" for kind in KINDS), *(f"{kind} share" for kind in KINDS)], rows)
        for loss, counts in trouble.items():
            print(f"{loss:.1%}, last repeat: {counts}")
        print(f"wrong values: {', '.join(wrong) or 'none'}")
        heaviest = max(SHARES)
        details = {
            "rate_bits": RATE_BITS,
            "bytes_per_second": {k: {str(p): v for p, v in f.items()} for k, f in goodput.items()},
            "shares": {kind: {str(loss): share for loss, share in f.items()} for kind, f in shares.items()},
            "wrong": wrong, "counts": {str(loss): counts for loss, counts in trouble.items()},
        }  # fmt: skip
        return result(
            NAME, ours=goodput["both"][heaviest] / 1e6, peer=goodput["both"][0.0] / 1e6, bar=BAR,
            ok=compared.ok, right=not wrong, unit="MB/s", details=details,
        )  # fmt: skip

    return run(NAME, BAR, "MB/s", measure, options)


if __name__ == "__main__":
    sys.exit(main())
