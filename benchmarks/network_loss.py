"""Goodput over UDP on links that lose packets at random, against the same links without loss; nothing may be wrong.

Two workers; a wire with a seed on each worker's link loses datagrams both ways. Wires need offloads off, so every rate
is compared with no loss in the same set-up. What is pulled after the losses must have the bits that it has without.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from common import arguments, result, run, table
from network_side import Hosts, NetworkSide, difference, lost

NAME = "network_loss"
BAR = "at 0.1, 1, 5 % loss at least 90, 70, 30 % of the goodput without; the same bits; nothing hangs"
SHARES = {0.0: 1.0, 0.001: 0.9, 0.01: 0.7, 0.05: 0.3}  # of the goodput without loss, by loss
KINDS = {"push": (True, False), "pull": (False, True), "both": (True, True)}
WORKERS = 2
BLOCKS, ELEMENTS = 16, 1 << 17
RATE_BITS = 100e6  # so that the links limit, and not the wires' processes
SEED = 20
MTU = 9000  # fewer frames for the wires' processes


def measure_losses(rounds: int, repeats: int) -> tuple[dict[str, dict[float, float]], list[str], dict[float, Any]]:
    """Bytes a second by kind and loss, what came back wrong, and the participants' counts by loss."""
    samples: dict[str, dict[float, list[float]]] = {kind: {loss: [] for loss in SHARES} for kind in KINDS}
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
        for repeat in range(max(3, repeats)):
            for loss in SHARES:
                hosts.harm(loss, SEED + repeat)
                before = lost(alone.stats())
                for kind, (push, pull) in KINDS.items():
                    samples[kind][loss].append(alone.goodput(push=push, pull=pull, rounds=rounds))
                after = lost(alone.stats())
                trouble[loss] = difference(after, {name: before.get(name, 0) for name in after})
                together.exchange(push=True, pull=True)
                if together.digests() != expected or len(expected) != 1:
                    wrong.append(f"{loss:.1%}, repeat {repeat}")
    medians = {kind: {loss: statistics.median(found[loss]) for loss in SHARES} for kind, found in samples.items()}
    return medians, wrong, trouble


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    rounds = 1 if options.quick else 6

    def measure() -> dict[str, Any]:
        goodput, wrong, trouble = measure_losses(rounds, options.repeats)
        shares = {kind: {loss: rate / found[0.0] for loss, rate in found.items()} for kind, found in goodput.items()}
        rows = [
            [f"{loss:.1%}", *(found[loss] / 1e6 for found in goodput.values())]
            + [f"{found[loss]:.0%}" for found in shares.values()]
            for loss in SHARES
        ]
        table(["loss", *(f"{kind} MB/s" for kind in KINDS), *(f"{kind} share" for kind in KINDS)], rows)
        for loss, counts in trouble.items():
            print(f"{loss:.1%}, last repeat: {counts}")
        print(f"wrong values: {', '.join(wrong) or 'none'}")
        held = all(found[loss] >= least for found in shares.values() for loss, least in SHARES.items())
        heaviest = max(SHARES)
        details = {
            "rate_bits": RATE_BITS,
            "bytes_per_second": {k: {str(p): v for p, v in f.items()} for k, f in goodput.items()},
            "shares": {kind: {str(loss): share for loss, share in f.items()} for kind, f in shares.items()},
            "wrong": wrong, "counts": {str(loss): counts for loss, counts in trouble.items()},
        }  # fmt: skip
        return result(
            NAME, ours=goodput["both"][heaviest] / 1e6, peer=goodput["both"][0.0] / 1e6, bar=BAR,
            ok=held and not wrong, unit="MB/s", details=details,
        )  # fmt: skip

    return run(NAME, BAR, "MB/s", measure)


if __name__ == "__main__":
    sys.exit(main())
