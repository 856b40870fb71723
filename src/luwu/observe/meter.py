"""Turn the workers' reports into one record a step, and records into rates."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from luwu.core.shares import is_even

if TYPE_CHECKING:
    from typing_extensions import NotRequired

RECENT_STEPS = 20
"""Rates are taken over this many last steps."""


BYTES = ("bytes_pulled", "bytes_pushed")


class StepReport(TypedDict):
    """A worker's report after each attempt at a step.

    Times are ``time.monotonic()``, which all processes of a machine share. ``began`` is the end of the attempt before,
    with its validation. Data travelled during ``busy_seconds`` of the attempt, and the worker waited for it during
    ``waited_seconds`` of them. Bytes are counted since the worker joined.
    """

    kind: str
    attempt: int
    step: int
    committed: bool
    loss: float
    sequences: int
    tokens: int
    lr: float
    grad_norm: float | None
    began: float
    ended: float
    waited_seconds: float
    busy_seconds: float
    bytes_pulled: int
    bytes_pushed: int
    loss_scale: NotRequired[float | None]
    """factor of the attempt's loss, where losses are scaled"""
    data_seconds: NotRequired[float]
    """time in which the worker made its batch"""
    waits: NotRequired[tuple[float, float]]
    """parts of ``waited_seconds`` in forward and in backward; the rest is at the step's end"""
    validation: NotRequired[tuple[float, int] | None]
    """sum of losses over sequences, and sequences, where the step ended with a validation"""


@dataclass(frozen=True)
class StepRecord:
    """An attempt over all workers, as metrics.jsonl keeps it.

    `step` counts committed steps, this one included; `grad_norm` is the gradient's global norm before clipping, None
    without clipping. `seconds` go from the end of the attempt before, without validations, to the end of this one, so
    that the seconds of all attempts together are the time of training. `hidden` is the share of the time with data
    under way in which workers did not wait for it. Bytes are those of all workers since the first ones joined, with
    padding, and with those of lost workers up to their last attempt.
    """

    step: int
    attempt: int
    committed: bool
    loss: float
    lr: float
    grad_norm: float | None
    tokens: int
    seconds: float
    tokens_per_second: float
    hidden: float
    bytes_pulled: int
    bytes_pushed: int
    validation_loss: float | None = None
    """Nats per token after this step; None where it was not measured."""
    loss_scale: float | None = None
    """Factor of the attempt's loss; None without loss scaling."""
    sequences: list[int] | None = None
    """Sequences of each worker, by rank; None where the batch was divided evenly."""
    slowest: dict[str, Any] | None = None
    """The worker whose own work took longest, see `slowest_of`."""
    server: dict[str, Any] | None = None
    """Counts of this machine's server since the row before, see `served_between`; None: it is elsewhere."""


class Rates(NamedTuple):
    """Rates over the last attempts, see the functions of `Meter`."""

    tokens_per_second: float
    hidden: float
    seconds_left: float


class Meter:
    """Collects one report from each worker and attempt.

    Attributes:
        last: record of the last attempt.
        rates: rates after that attempt; as ``last``, another thread may read them.
        validation_loss: the last one that was measured.
        first_step: the store's step at which the run began in it, from which the run's own steps count.
    """

    def __init__(self, workers: int, steps: int) -> None:
        self.workers = workers
        self.steps = steps
        self.rolled_back = 0
        self.first_step = 0
        self.last: StepRecord | None = None
        self.rates = Rates(0.0, 0.0, 0.0)
        self.validation_loss: float | None = None
        self._open: dict[int, dict[int, StepReport]] = {}
        self._noted: dict[int, dict[int, Mapping[str, Any]]] = {}  # parts of lost workers, by attempt and rank
        self._shares: dict[int, dict[int, tuple[float, int]]] = {}  # of validations, by step and rank
        self._first: dict[int, int] = {}  # attempt that a worker in a lost one's place makes first, by rank
        none = dict.fromkeys(BYTES, 0)
        self._bytes = [none] * workers  # that each rank's worker has counted at last, with those of the lost ones
        self._lost_bytes = [none] * workers  # that the lost ones of each rank have counted
        self._newest = -1  # attempt with a record
        self._ended: float | None = None  # end of that attempt
        self._recent: deque[StepRecord] = deque(maxlen=RECENT_STEPS)
        self._recent_times: deque[tuple[float, float]] = deque(maxlen=RECENT_STEPS)  # waited, busy

    def add(self, rank: int, report: StepReport) -> StepRecord | None:
        """Take a report; the record of its attempt once every worker has reported it."""
        self._open.setdefault(report["attempt"], {})[rank] = cast("StepReport", {**report, **self._count(rank, report)})
        if share := report.get("validation"):
            self._shares.setdefault(report["step"], {})[rank] = share
        return self._complete(report["attempt"])

    def replace(self, rank: int, first: int, parts: Iterable[Mapping[str, Any]]) -> Iterator[StepRecord]:
        """Note that another worker has taken a lost one's place; yield the records that waited for the lost one.

        Args:
            rank: the worker's.
            first: attempt that the other makes first; those before it have ended.
            parts: the lost worker's parts in attempts: attempt, loss, sequences, tokens, bytes_pulled and bytes_pushed.
                Times are another worker's.
        """
        own = self._first.get(rank, 0)  # notes of attempts before it are of the worker before the lost one
        parts = [{**part, **self._count(rank, part)} for part in parts if part["attempt"] >= own]
        self._first[rank] = first
        self._lost_bytes[rank] = self._bytes[rank]
        for part in parts:
            has_record = part["attempt"] not in self._open and part["attempt"] <= self._newest
            if has_record or part["attempt"] >= first:
                continue
            self._noted.setdefault(part["attempt"], {})[rank] = part
            if (record := self._complete(part["attempt"])) is not None:
                yield record

    def _count(self, rank: int, part: Mapping[str, Any]) -> dict[str, int]:
        """Return the bytes of a worker and of the lost ones before it in its place."""
        counted = {name: self._lost_bytes[rank][name] + part[name] for name in BYTES}
        self._bytes[rank] = {name: max(self._bytes[rank][name], counted[name]) for name in BYTES}
        return counted

    def all_begin_at(self, attempt: int) -> bool:
        """Return True if every worker was replaced before this attempt: what they did not report, nobody will."""
        return all(self._first.get(rank) == attempt for rank in range(self.workers))

    def validated(self, rank: int, step: int, share: tuple[float, int]) -> float | None:
        """Take a share of the validation after a step, measured later; return the loss once all shares are there."""
        shares = self._shares.setdefault(step, {})
        shares[rank] = share
        return self._note_validation(_validation_loss(shares, self.workers))

    def _note_validation(self, loss: float | None) -> float | None:
        self.validation_loss = self.validation_loss if loss is None else loss
        return loss

    def _complete(self, attempt: int) -> StepRecord | None:
        """Return an attempt's record if every worker has reported it, or has noted its part and was lost."""
        reports, noted = self._open.get(attempt, {}), self._noted.get(attempt, {})
        if not reports or len(reports.keys() | noted.keys()) < self.workers:
            return None
        for rank in noted.keys() - reports.keys():
            own = {name: noted[rank][name] for name in ("loss", "sequences", "tokens", *BYTES)}
            other = {name: value for name, value in next(iter(reports.values())).items() if name != "validation"}
            reports[rank] = cast("StepReport", {**other, **own})
        del self._open[attempt]
        self._noted.pop(attempt, None)
        record = self._merge(dict(sorted(reports.items())))
        self._newest = max(self._newest, attempt)
        self._ended = max(report["ended"] for report in reports.values())
        self._shares = {step: shares for step, shares in self._shares.items() if step >= record.step}
        self._recent.append(record)
        self.last = record
        self.rates = Rates(self.tokens_per_second(), self.hidden(), self.seconds_left())
        self._note_validation(record.validation_loss)
        self.rolled_back += not record.committed
        return record

    def tokens_per_second(self) -> float:
        """Tokens a second over the last steps, all workers together."""
        seconds = sum(record.seconds for record in self._recent)
        return sum(record.tokens for record in self._recent) / seconds if seconds else 0.0

    def hidden(self) -> float:
        """Share of communication hidden behind compute, over the last steps."""
        return _hidden(self._recent_times) if self._recent else 0.0

    def seconds_left(self) -> float:
        """Time to the last step at the recent pace."""
        if self.last is None:
            return 0.0
        pace = sum(record.seconds for record in self._recent) / len(self._recent)
        return max(0, self.steps - self.last.step) * pace

    def _merge(self, reports: Mapping[int, StepReport]) -> StepRecord:
        first = next(iter(reports.values()))
        tokens = sum(report["tokens"] for report in reports.values())
        seconds = max(report["ended"] for report in reports.values()) - self._began(reports)
        times = [(report["waited_seconds"], report["busy_seconds"]) for report in reports.values()]
        self._recent_times.append((sum(waited for waited, _ in times), sum(busy for _, busy in times)))
        return StepRecord(
            step=first["step"],
            attempt=first["attempt"],
            committed=first["committed"],
            loss=weighted_loss(list(reports.values())),
            lr=first["lr"],
            grad_norm=first["grad_norm"],
            tokens=tokens,
            seconds=seconds,
            tokens_per_second=tokens / seconds if seconds else 0.0,
            hidden=_hidden(times),
            bytes_pulled=sum(report["bytes_pulled"] for report in reports.values()),
            bytes_pushed=sum(report["bytes_pushed"] for report in reports.values()),
            validation_loss=_validation_loss(self._shares.get(first["step"], {}), self.workers),
            loss_scale=first.get("loss_scale"),
            sequences=uneven_sequences(list(reports.values())),
            slowest=slowest_of(reports),
        )

    def _began(self, reports: Mapping[int, StepReport]) -> float:
        """Return when an attempt began. A worker whose first one it is does not know the end of the attempt before."""
        known = [report["began"] for rank, report in reports.items() if self._first.get(rank) != report["attempt"]]
        if not known and self._ended is not None:
            return self._ended
        return max(known or [report["began"] for report in reports.values()])


def _hidden(times: Iterable[tuple[float, float]]) -> float:
    """Return 1 minus the time waited over the time in which data travelled."""
    waited, busy = (sum(column) for column in zip(*times, strict=True))
    return min(1.0, max(0.0, 1.0 - waited / busy)) if busy > 0 else 1.0


def slowest_of(reports: Mapping[int, StepReport]) -> dict[str, Any] | None:
    """Return the times of the worker whose own work took longest in an attempt; None where workers do not tell them.

    ``own_seconds`` are those without its waits for the server, ``data_seconds`` those of them in which it made its
    batch. ``others_seconds`` are the median of the other workers' own ones, None for a single worker.
    ``wait_seconds`` are its waits in forward, in backward, and at the step's end.
    """
    own = {
        rank: max(0.0, report["ended"] - report["began"] - report["waited_seconds"])
        for rank, report in reports.items()
        if "waits" in report and "data_seconds" in report
    }
    if len(own) < len(reports):
        return None
    rank = max(own, key=lambda each: own[each])
    report = reports[rank]
    others = [seconds for each, seconds in own.items() if each != rank]
    forward, backward = report["waits"]
    return {
        "rank": rank,
        "own_seconds": own[rank],
        "data_seconds": report["data_seconds"],
        "others_seconds": median(others) if others else None,
        "wait_seconds": [forward, backward, max(0.0, report["waited_seconds"] - forward - backward)],
    }


def served_between(
    before: Mapping[str, Any], now: Mapping[str, Any], threads: int, *, shared_memory: bool
) -> dict[str, Any] | None:
    """Return what a server did between two of its stats; None where it has none, or was started between them.

    ``pulls_waited`` is the share of pulls that found their block not in memory, or not updated yet, and
    ``states_waited`` the share of chunks whose gradient was there before their states. ``update_seconds`` are of all
    ``threads``; ``read_seconds`` are those in which reads of parameters, and of states, were under way, added up.
    ``shared_memory``: it is the workers', too.
    """
    if not before or not now or any(now[name] < before[name] for name in ("pulls", "chunks_updated", "bytes_written")):
        return None
    grown = {
        name: now[name] - before[name]
        for name in (
            "bytes_read", "bytes_written", "read_seconds", "write_seconds", "update_seconds", "pulls", "pulls_waited",
            "chunks_updated", "states_waited",
        )
    }  # fmt: skip
    return {
        "read_bytes": grown["bytes_read"],
        "written_bytes": grown["bytes_written"],
        "read_seconds": grown["read_seconds"],
        "write_seconds": grown["write_seconds"],
        "update_seconds": grown["update_seconds"],
        "threads": threads,
        "pulls_waited": grown["pulls_waited"] / max(1, grown["pulls"]),
        "states_waited": grown["states_waited"] / max(1, grown["chunks_updated"]),
        "shared_memory": shared_memory,
    }


def weighted_loss(parts: Sequence[Mapping[str, Any]]) -> float:
    """Return an attempt's loss from its workers' losses, in the order of their ranks, so that it has the same bits."""
    return float(sum(part["loss"] * part["sequences"] for part in parts) / sum(part["sequences"] for part in parts))


def uneven_sequences(parts: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Return the sequences of each worker, in the order of the parts; None where they are divided evenly."""
    found = [part["sequences"] for part in parts]
    return None if is_even(found) else found


def _validation_loss(shares: Mapping[int, tuple[float, int]], workers: int) -> float | None:
    """Return the mean of all workers' losses, added in the order of ranks; None where shares are missing."""
    if len(shares) < workers:
        return None
    found = [shares[rank] for rank in sorted(shares)]
    return sum(loss_sum for loss_sum, _ in found) / sum(count for _, count in found)
