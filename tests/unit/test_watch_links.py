"""`luwu watch` shows what the links of workers and switches carry, from the counts that these tell their server."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from luwu.control import control_pb2 as pb
from luwu.control.link_counts import facts_of_link, link_counts
from luwu.watch import runs as watch_runs
from luwu.watch.links import Link, link_records, links_told, next_links
from luwu.watch.runs import WatchedRun
from luwu.watch.terminal import text_of

SOCKET = {
    "bytes_received": 500, "bytes_sent": 300, "dropped_full": 1, "dropped_refused": 0, "dropped_cut": 2,
    "dropped_unread": 4,
}  # fmt: skip
NODE = {"packets_out": 9, "resent": 3, "drops": {"truncated": 8, "checksum": 16, "duplicate": 99}, "socket": SOCKET}


def told(at: float, **counts: int) -> pb.LinkCounts:
    return pb.LinkCounts(transport="udp", at_seconds=at, **counts)


@pytest.mark.parametrize(
    ("transport", "stats", "found"),
    [
        ("shm", {"bytes_pulled": 7, "bytes_pushed": 5, "wait_seconds": 1.0}, (7, 5, 0, 0, 0)),
        ("tcp", {"bytes_received": 7, "bytes_sent": 5, "reconnects": 1}, (7, 5, 0, 0, 0)),
        # Some of what a worker over UDP sends travels over TCP; two servers have two trees, one not yet.
        ("udp", {"bytes_received": 7, "bytes_sent": 5, "networks": [NODE, {}, NODE]}, (1007, 605, 18, 6, 62)),
        ("udp", {"bytes_received": 7, "bytes_sent": 5, "networks": [{}]}, (7, 5, 0, 0, 0)),
        ("udp", {**NODE, "sums_sent_again": 4} | {"resent": 4}, (500, 300, 9, 4, 31)),
        ("udp", {}, (0, 0, 0, 0, 0)),  # a switch between two runs
    ],
)
def test_counts_are_those_of_all_links_of_a_participant(
    transport: str, stats: dict[str, Any], found: tuple[int, ...]
) -> None:
    counts = link_counts(stats, transport, 2.5)
    names = ("received_bytes", "sent_bytes", "packets_sent", "packets_again", "packets_dropped")
    assert tuple(getattr(counts, name) for name in names) == found
    assert (counts.transport, counts.at_seconds) == (transport, 2.5)
    assert facts_of_link(counts) == {"transport": transport, **dict(zip(names, found, strict=True))}


def test_sums_that_a_switch_sends_again_are_packets_sent_again() -> None:
    node = {name: value for name, value in NODE.items() if name != "resent"}
    assert link_counts({**node, "sums_sent_again": 4}, "udp", 0.0).packets_again == 4


def records(*answers: dict[str, pb.LinkCounts]) -> list[dict[str, Any]]:
    links: dict[str, Link] = {}
    for answer in answers:
        links = next_links(links, answer)
    return link_records(links)


def test_rates_are_those_between_two_reports_by_the_clock_of_whoever_reports() -> None:
    first = told(10.0, received_bytes=100, sent_bytes=10, packets_sent=50, packets_again=0, packets_dropped=5)
    second = told(12.0, received_bytes=500, sent_bytes=10, packets_sent=150, packets_again=20, packets_dropped=6)
    [record] = records({"worker 0": first})
    assert record["received_bytes_per_second"] is record["again_share"] is None and record["packets_sent"] == 50
    [record] = records({"worker 0": first}, {"worker 0": second})
    assert json.loads(json.dumps(record)) == record
    assert (record["received_bytes_per_second"], record["sent_bytes_per_second"]) == (200.0, 0.0)
    assert (record["again_share"], record["packets_again"], record["dropped_per_second"]) == (0.2, 20, 0.5)
    assert records({"worker 0": first}, {"worker 0": second}, {"worker 0": second}) == [record]  # nothing new came


@pytest.mark.parametrize("at", [9.0, math.nan, math.inf])
def test_a_participant_that_began_again_has_no_rates_yet(at: float) -> None:
    [record] = records({"a": told(10.0, received_bytes=100)}, {"a": told(at, received_bytes=90)})
    assert record["received_bytes_per_second"] is None
    [record] = records({"a": told(math.inf, received_bytes=90)}, {"a": told(math.nan, received_bytes=91)})
    assert record["received_bytes_per_second"] is None
    assert records({"a": told(1.0)}, {}) == []


def status(at: float, received: int) -> pb.StatusReply:
    link = told(at, received_bytes=received, sent_bytes=received, packets_sent=int(100 * at), packets_again=int(at))
    working = pb.WorkerStatus(rank=1, progress=pb.ProgressRequest(link=link))
    near = pb.ProgressRequest(link=pb.LinkCounts(transport="shm", at_seconds=at, received_bytes=received))
    return pb.StatusReply(
        present=[
            pb.WorkerStatus(rank=0, progress=near), working,
            pb.WorkerStatus(rank=2, progress=pb.ProgressRequest()), pb.WorkerStatus(rank=3),
        ],
        switches=[pb.SwitchStatus(name="switch a", link=link), pb.SwitchStatus(name="switch b")],
    )  # fmt: skip


def test_workers_and_switches_that_have_told_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [status(1.0, 1_000_000), status(3.0, 5_000_000)]
    assert list(links_told(answers[0])) == ["worker 0", "worker 1", "switch a"]
    monkeypatch.setattr(watch_runs, "ask_run", lambda *_, **__: answers.pop(0))
    run = WatchedRun("luwu://localhost:7", clock=lambda: 0.0)
    run.refresh()
    run.refresh()
    assert [link["name"] for link in run.state["links"]] == ["worker 0", "worker 1", "switch a"]
    text = text_of([run])
    assert "link of worker 0: shared memory, received 2 MB/s, sent 0 B/s\n" in text
    assert "link of switch a: UDP, received 2 MB/s, sent 2 MB/s, 3 packets sent again (1.00% now), 0 dropped" in text, (
        text
    )
