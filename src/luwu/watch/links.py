"""Links of workers and switches: what they carry a second, from the counts that these tell their server. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from luwu.control.link_counts import facts_of_link
from luwu.watch.rates import rate

if TYPE_CHECKING:
    from luwu.control import control_pb2 as pb


@dataclass(frozen=True)
class Link:
    """A participant's links at its last report.

    Attributes:
        at: time of its monotonic clock, in seconds.
        counts: its counts by name.
        rates: their growth a second since the report before; None: unknown.
    """

    at: float
    counts: Mapping[str, Any]
    rates: Mapping[str, float | None]


def links_told(reply: pb.StatusReply) -> dict[str, pb.LinkCounts]:
    """Return the counts that a server has of its workers and switches, by their names."""
    told = {
        f"worker {worker.rank}": worker.progress.link
        for worker in reply.present
        if worker.HasField("progress") and worker.progress.HasField("link")
    }
    return told | {switch.name: switch.link for switch in reply.switches if switch.HasField("link")}


def next_links(before: Mapping[str, Link], told: Mapping[str, pb.LinkCounts]) -> dict[str, Link]:
    """Return the links after an answer of the server; one that has told nothing new keeps its rates."""
    return {name: _next(before.get(name), counts) for name, counts in told.items()}


def _next(before: Link | None, told: pb.LinkCounts) -> Link:
    if before is not None and before.at == told.at_seconds:
        return before
    counts = facts_of_link(told)
    numbers = {name: count for name, count in counts.items() if isinstance(count, int)}
    earlier, seconds = ({}, 0.0) if before is None else (before.counts, told.at_seconds - before.at)
    rates = {name: rate(earlier.get(name), count, seconds) for name, count in numbers.items()}
    return Link(told.at_seconds, counts, rates)


def link_records(links: Mapping[str, Link]) -> list[dict[str, Any]]:
    """Return what each link carries, as JSON can hold it: its counts, rates, and the share that is sent again."""
    return [_record(name, link) for name, link in links.items()]


def _record(name: str, link: Link) -> dict[str, Any]:
    sent, again = link.rates["packets_sent"], link.rates["packets_again"]
    return {
        "name": name,
        **link.counts,
        "received_bytes_per_second": link.rates["received_bytes"],
        "sent_bytes_per_second": link.rates["sent_bytes"],
        "again_share": again / sent if again is not None and sent else None,
        "dropped_per_second": link.rates["packets_dropped"],
    }
