"""The cost model against every figure that arXiv 2409.00918 measured: ours beside the paper's, with the error.

Nothing is fitted to a row: all rows share the constants of `luwu.plan.constants` and the presets, each with its source.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.paper_claims import Claim, elsewhere, interference, scale, shapes, sizes, throughput

NAME = "plan_paper"
BAR = "at least 80 % of rows within 10 %, and none off by more than 25 % without an explanation"
WITHIN, EXPLAINED_BEYOND, SHARE = 0.10, 0.25, 0.80


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    claims = found["shares"]["what was measured"]
    yield (
        "figures of arXiv 2409.00918 that `luwu plan` has within 10 %",
        f"{found['within']} of {found['counted']}; of its measurements alone {claims:.0%}",
        "the paper",
    )


def main() -> int:
    """Predicts, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)

    def measure() -> dict[str, Any]:
        groups = {
            "models and memory": [*shapes()],
            "what was measured": [*sizes(), *throughput(), *interference(), *scale()],
        }
        for heading, claims in groups.items():
            show(heading, claims)
        beside = [*elsewhere()]
        show("other figures of the paper (not counted)", beside)
        counted = [claim for claims in groups.values() for claim in claims if not claim.calibrates]
        shares = {heading: share_within(claims) for heading, claims in groups.items()}
        unexplained = [claim.what for claim in counted if abs(claim.error) > EXPLAINED_BEYOND and not claim.note]
        share = share_within(counted)
        print("\nwithin 10 %: " + ", ".join(f"{name} {found:.0%}" for name, found in shares.items()))
        return result(
            NAME, ours=share, peer=SHARE, bar=BAR, ok=True, right=share >= SHARE and not unexplained,
            unit="share of rows",
            details={
                "rows": [vars(claim) | {"error": claim.error} for claim in (*counted, *beside)],
                "counted": len(counted), "within": sum(abs(claim.error) <= WITHIN for claim in counted),
                "shares": shares, "unexplained": unexplained,
            },
        )  # fmt: skip

    return run(NAME, BAR, "share of rows", measure, options)


def share_within(claims: Sequence[Claim]) -> float:
    """Return the share of claims within the limit, among those that count."""
    counted = [claim for claim in claims if not claim.calibrates]
    return sum(abs(claim.error) <= WITHIN for claim in counted) / len(counted)


def show(heading: str, claims: Sequence[Claim]) -> None:
    """A table, and below it why rows differ."""
    print(f"\n{heading}")
    notes: list[str] = []
    rows = []
    for claim in claims:
        mark = ""
        if claim.calibrates or (claim.note and abs(claim.error) > WITHIN):
            if claim.note not in notes:
                notes.append(claim.note)
            mark = f"[{notes.index(claim.note) + 1}]"
        rows.append([claim.what, claim.ours, claim.paper, f"{claim.error:+.1%}", mark])
    table(["figure", "ours", "paper", "error", ""], rows)
    for number, note in enumerate(notes, start=1):
        print(f"[{number}] {note}")


if __name__ == "__main__":
    sys.exit(main())
