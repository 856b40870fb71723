"""A worker is lost after its attempt has begun at the first of two servers, and before it has begun at the second."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.forked import programs
from tests.integration.test_lost_workers import LOST_IN, PROGRAM, TWO_SERVERS, TWO_SERVERS_UDP, run_of, serve

from harness.network.namespaces import wait_until

pytestmark = pytest.mark.timeout(300)

HALF = f"""
    if given.get("half"):
        second = session._servers[1].control
        start = second.start
        def start_but_begin(method, request, *rest, **named):
            if method == "Begin" and session.step == {LOST_IN - 1}:
                wait_for_test()
            return start(method, request, *rest, **named)
        second.start = start_but_begin
    torch.manual_seed(0)
"""
LARGE = 1024
"""Width of blocks whose gradients a worker has not all room for: it waits for buffers that servers hold."""


def program(width: int) -> str:
    text = PROGRAM.replace("    torch.manual_seed(0)\n", HALF, 1)
    text = text.replace(
        "torch.nn.Linear(64, 64) for _ in range(4)", f"torch.nn.Linear({width}, {width}) for _ in range(8)"
    )
    return text.replace("torch.rand(2, 64)", f"torch.rand(2, {width})").replace(
        "torch.ones(1, 64)", f"torch.ones(1, {width})"
    )


@pytest.mark.parametrize(
    ("transport", "width", "place"),
    [
        (TWO_SERVERS, LARGE, "before"),
        (TWO_SERVERS, LARGE, "forward"),
        (TWO_SERVERS, 64, "before"),
        (TWO_SERVERS_UDP, 64, "before"),
    ],
)
def test_the_second_server_does_not_wait_for_a_worker_that_waits_for_the_first(
    transport: str, width: int, place: str, tmp_path: Path
) -> None:
    """The other worker begins the attempt after the loss, or has begun it: it gets to its vote, and both go on."""
    with programs(program(width), tmp_path) as started:
        with serve(transport, tmp_path / "calm") as (url, _):
            calm = [started.start(rank, url=url, place="-", limit=0.0) for rank in range(2)]
            expected = [worker.lines() for worker in calm]
        with serve(transport, tmp_path / "disturbed") as (url, servers):
            stays = started.start(0, url=url, place=place, limit=0.0)
            lost = started.start(1, url=url, place="-", limit=0.0, half=True)
            before = stays.lines_until_pause()
            first = lost.lines_until_pause()
            lost.process.kill()
            wait_until(lambda: all(1 in run_of(server).vacancies for server in servers), "the loss of worker 1")
            new = started.start(1, url=url, place="-", limit=0.0)
            stays.go_on()
            assert [before + stays.lines(), first + new.lines()] == expected
            assert [worker.process.returncode for worker in (stays, new)] == [0, 0]
