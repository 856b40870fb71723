"""State of a run at one moment as the page gets it: from a server's answer, and from the one before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from luwu.control.status import activity_of, facts_of
from luwu.control.timeouts import TIMEOUTS
from luwu.core.progress import WorkerPhase
from luwu.watch.disks import DiskCounts
from luwu.watch.links import Link, link_records
from luwu.watch.rates import rate

if TYPE_CHECKING:
    from luwu.control import control_pb2 as pb

_PHASES = {int(phase) for phase in WorkerPhase}
_PACKETS = "luwu_server_packets_out_total"
_AGAIN = "luwu_server_packets_again_total"
_RATES = {
    "pulled": "luwu_server_pulled_bytes_total",
    "pushed": "luwu_server_pushed_bytes_total",
    "store read": "luwu_store_read_bytes_total",
    "store written": "luwu_store_written_bytes_total",
}


@dataclass(frozen=True)
class Sample:
    """Counts of one moment, from which the next one makes rates.

    Attributes:
        at: time in seconds.
        figures: a server's figures by name.
        disks: counts of the disks by name.
        links: links of workers and switches by name.
    """

    at: float
    figures: Mapping[str, float] = field(default_factory=dict)
    disks: Mapping[str, DiskCounts] = field(default_factory=dict)
    links: Mapping[str, Link] = field(default_factory=dict)


def traffic(before: Sample | None, now: Sample) -> dict[str, float | None]:
    """Return bytes a second that a server's workers and its store had between two samples, by kind."""
    if before is None:
        return dict.fromkeys(_RATES)
    seconds = now.at - before.at
    return {word: rate(before.figures.get(name), now.figures.get(name), seconds) for word, name in _RATES.items()}


def sent_again(before: Sample | None, now: Sample) -> float | None:
    """Return the share of the server's packets that were sent again between two samples; None: it sent none."""
    if before is None:
        return None
    again, sent = (rate(before.figures.get(name), now.figures.get(name), 1.0) for name in (_AGAIN, _PACKETS))
    return again / sent if again is not None and sent else None


def disk_records(before: Sample | None, now: Sample) -> list[dict[str, Any]]:
    """Return what each disk did between two samples: bytes read and written a second, and its queue now."""
    records = []
    for name, counts in now.disks.items():
        earlier = before.disks.get(name) if before is not None else None
        seconds = now.at - before.at if before is not None else 0.0
        records.append({
            "name": name,
            "read_bytes_per_second": rate(earlier.read_bytes if earlier else None, counts.read_bytes, seconds),
            "written_bytes_per_second": rate(
                earlier.written_bytes if earlier else None, counts.written_bytes, seconds
            ),
            "queue": counts.queue,
        })  # fmt: skip
    return records


def worker_records(workers: Sequence[pb.WorkerStatus], shares: Sequence[int]) -> list[dict[str, Any]]:
    """Return what each worker does.

    Args:
        workers: the server's account of them, by rank.
        shares: sequences of each worker in the last attempt, by rank; empty: the batch was divided evenly.
    """
    return [_worker_record(worker, shares) for worker in workers]


def _worker_record(worker: pb.WorkerStatus, shares: Sequence[int]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "rank": worker.rank,
        "peer": worker.peer,
        "share": shares[worker.rank] if worker.rank < len(shares) else None,
        "behind_seconds": worker.behind_seconds,
        "late": worker.behind_seconds >= TIMEOUTS.slow_worker_seconds,
        "activity": "has told nothing yet",
        "pushed": None,
        "memory_bytes": None,
        "heard_seconds": None,
    }
    if worker.HasField("progress") and worker.progress.phase in _PHASES:  # a newer server may know others
        told = worker.progress
        record |= {
            "activity": f"{activity_of(told)}{f', at {told.place}' if told.place else ''}",
            "pushed": told.pushed,
            "memory_bytes": told.memory_bytes or None,
            "heard_seconds": worker.heard_seconds,
        }
    return record


def run_record(
    reply: pb.StatusReply, before: Sample | None, now: Sample, shares: Sequence[int], first_step: int = 0
) -> dict[str, Any]:
    """Return the state of a run that is under way.

    Args:
        reply: the server's answer; its steps are the store's.
        before: sample of the look before; None: there was none.
        now: sample of this look.
        shares: as `worker_records` takes them.
        first_step: the store's step at which the run began in it; the steps of the state count from there.
    """
    return {
        "live": True,
        "ended": False,
        **facts_of(reply),
        "step": max(0, reply.step - first_step),
        "durable_step": max(0, reply.step - reply.unwritten - first_step),
        "present": worker_records(reply.present, shares),
        "blocks": list(reply.blocks),
        "traffic": traffic(before, now),
        "sent_again": sent_again(before, now),
        "switches": [{"name": each.name, "address": each.address, "parent": each.parent} for each in reply.switches],
        "links": link_records(now.links),
        "disks": disk_records(before, now),
        "server_memory_bytes": now.figures.get("luwu_server_memory_bytes"),
    }
