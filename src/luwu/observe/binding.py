"""The part that binds a run's steps, from rows of metrics.jsonl: as figures, and as one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from luwu.core.units import rate_text, seconds_text
from luwu.observe.bounds import Bound, Part, Served, Step, bounds_of
from luwu.observe.telling import SERVED, is_amount, tells

RECENT = 20
"""Steps that a sentence about a live run is of."""

Row = Mapping[str, Any]


def binding_sentence(rows: Sequence[Row]) -> str:
    """Return one sentence, without a full stop, on what binds the last steps; empty: their rows do not tell.

    Args:
        rows: rows of metrics.jsonl, in their order; the last 20 steps of them count.
    """
    step = mean_step(rows[-RECENT - 1 :])
    bounds = [] if step is None else bounds_of(step)
    return sentence_of(step, bounds[0]) if step is not None and bounds else ""


def mean_step(rows: Sequence[Row]) -> Step | None:
    """Return the mean figures of the committed steps in some rows; None: there is none whose row has them all.

    The first row is the one from which bytes are counted.
    """
    pairs = [(before, row) for before, row in pairwise(rows) if tells(row)]
    if not pairs:
        return None
    found = [row for _, row in pairs]
    slowest = [row["slowest"] for row in found]
    rank = Counter(each["rank"] for each in slowest).most_common(1)[0][0]
    waits = [fmean(each["wait_seconds"][place] for each in slowest) for place in range(3)]
    own = fmean(each["own_seconds"] for each in slowest)
    pulled, pushed = (_mean_bytes(pairs, name) for name in ("bytes_pulled", "bytes_pushed"))
    return Step(
        seconds=max(fmean(row["seconds"] for row in found), own + sum(waits)),
        tokens=fmean(row["tokens"] for row in found),
        rank=rank,
        own=own,
        data=fmean(each["data_seconds"] for each in slowest),
        excess=_excess(rank, slowest),
        forward=waits[0],
        backward=waits[1],
        end=waits[2],
        pulled_bytes=pulled,
        pushed_bytes=pushed,
        served=_mean_served(found),
        steps=len(found),
    )


def sentence_of(step: Step, bound: Bound) -> str:
    """Return a sentence on a part that binds a step."""
    share = f"{100 * min(1.0, bound.seconds / step.seconds):.0f} %"
    times = f"{seconds_text(bound.seconds)} of {seconds_text(step.seconds)}"
    served = step.served
    if bound.part is Part.COMPUTE:
        return f"computation takes {share} of a step ({times})"
    if bound.part is Part.DATA:
        return f"making batches takes {share} of a step ({times})"
    if bound.part is Part.WORKER:
        return f"the others wait for worker {step.rank} in {share} of a step ({times})"
    if bound.part is Part.DISK and served is not None:
        read, written = (rate_text(count / step.seconds) for count in (served.read_bytes, served.written_bytes))
        return f"{share} of a step waits for the disk ({times}; it reads {read} and writes {written})"
    if bound.part is Part.UPDATE and served is not None:
        busy = f"{100 * served.updating:.0f} % of the time of {served.threads} threads"
        return f"{share} of a step waits for the server's updates ({times}; they take {busy})"
    if bound.part is Part.PULL:
        rate = rate_text(step.pulled_bytes / step.seconds)
        return f"{share} of a step waits for parameters on their way ({times}; {rate})"
    rate = rate_text(step.pushed_bytes / step.seconds)
    return f"{share} of a step waits for gradients on their way, or for the step's end ({times}; {rate})"


def _excess(rank: int, slowest: Sequence[Row]) -> float:
    """Return the mean time by which a worker is slower than the others; attempts in which another is count against it.

    So workers that are slower in turn, by chance, have none.
    """
    signed = [
        (each["own_seconds"] - max(each["others_seconds"], each["data_seconds"])) * (1 if each["rank"] == rank else -1)
        for each in slowest
        if each["others_seconds"] is not None
    ]
    return max(0.0, fmean(signed)) if signed else 0.0


def _mean_bytes(pairs: Sequence[tuple[Row, Row]], name: str) -> float:
    """Return the mean growth of a count; it begins again at 0 with each start of the run."""
    known = [
        (before[name], row[name]) for before, row in pairs if all(is_amount(each.get(name)) for each in (before, row))
    ]
    grown = [after - before for before, after in known]
    counted = [each for each in grown if each >= 0]
    return fmean(counted) if counted else 0.0


def _mean_served(rows: Sequence[Row]) -> Served | None:
    """Return what a server did in the mean: seconds over seconds, so that a long step counts by its time.

    Shares of what was waited for count by the time for which the step waited: they are to say what that was spent on.
    """
    told = [(row, row["server"]) for row in rows if row.get("server") and row["server"].keys() >= SERVED]
    if not told:
        return None
    parts = [part for _, part in told]
    seconds = sum(row["seconds"] for row, _ in told)
    thread_seconds = sum(part["threads"] * row["seconds"] for row, part in told)
    waits = [sum(row["slowest"]["wait_seconds"]) for row, _ in told]
    return Served(
        read_bytes=fmean(part["read_bytes"] for part in parts),
        written_bytes=fmean(part["written_bytes"] for part in parts),
        reading=min(1.0, sum(part["read_seconds"] for part in parts) / seconds),
        writing=min(1.0, sum(part["write_seconds"] for part in parts) / seconds),
        updating=sum(part["update_seconds"] for part in parts) / thread_seconds,
        threads=parts[-1]["threads"],
        pulls_waited=_weighted([part["pulls_waited"] for part in parts], waits),
        states_waited=_weighted([part["states_waited"] for part in parts], waits),
        shared_memory=parts[-1]["shared_memory"],
    )


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the mean of some values by their weights; the plain one where none weighs anything."""
    return fmean(values, weights if sum(weights) > 0 else None)
