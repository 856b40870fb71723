"""A worker that is killed does not end the run: another takes its place, and the bits are the undisturbed run's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.forked import Programs, programs
from tests.integration.network import KEY
from tests.integration.pausing import PAUSE
from tests.integration.udp import CREDENTIALS, MEMORY, udp_server, udp_switch

from harness.network.namespaces import wait_until
from luwu.control import control_pb2 as pb
from luwu.control.timeouts import Timeouts
from luwu.server.description import describe
from luwu.server.laggards import Patience
from luwu.server.membership import Membership
from luwu.server.network import NetworkServer
from luwu.server.server import LocalServer
from luwu.server.settings import ServerSettings

pytestmark = pytest.mark.timeout(300)

STEPS = 5
LOST_IN = 3  # step, from 1
PLACES = ("before", "forward", "backward", "after", "waiting")
SWITCHED = "udp through a switch"
TWO_SERVERS = "tcp, two servers"
TWO_SERVERS_UDP = "udp, two servers"
PROGRAM = f"""
url, place, limit = given["url"], given["place"], given["limit"]

{PAUSE}
paused = False
def pause(here):
    global paused
    if here == place and session.step == {LOST_IN - 1} and not paused:  # not again where the attempt is made again
        paused = True
        wait_for_test()

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
    def forward(self, x):
        for index, block in enumerate(self.blocks):
            x = torch.nn.functional.dropout(torch.tanh(block(x)), 0.2)
            x = Pause.apply(x, lambda: pause("backward")) if index == 1 else x
            if index == 2:
                pause("forward")
        return x

def attempt():
    data = torch.rand(2, 64)
    optimizer.zero_grad()
    loss = model(data).square().sum()
    loss.backward()
    pause("after")
    return loss.item()

session = luwu.connect(url, rank=rank, workers=2, key={KEY!r}) if url.startswith("luwu://") else join(url, rank, 2)
with session:
    torch.manual_seed(0)
    model = luwu.parallelize(Model(), session, blocks=["blocks.*"])
    optimizer = luwu.AdamW(model, lr=1e-2, max_grad_norm=limit or None)
    while session.step < {STEPS}:
        pause("before")
        torch.manual_seed(100 * session.step + rank)
        print(session.step, optimizer.step(attempt).hex(), flush=True)
    with torch.no_grad():
        print("end", model.eval()(torch.ones(1, 64)).sum().item().hex(), flush=True)
"""


@contextmanager
def serve(
    transport: str, folder: Path, seconds: float = 60.0
) -> Iterator[tuple[str, Sequence[LocalServer | NetworkServer]]]:
    """Serve two workers; yield where."""
    if transport == "shared memory":
        with LocalServer(folder, None, MEMORY, 2, patience=Patience(seconds)) as local:
            yield str(local.socket_path), [local]
        return
    switches = int(transport == SWITCHED)
    settings = {"worker_return_seconds": seconds, "transport": transport[:3], "switches": switches}
    timeouts = Timeouts(look_seconds=0.1)
    with ExitStack() as stack:
        stores = [folder / f"store-{number}" for number in range(1 + transport.endswith("two servers"))]
        servers = [stack.enter_context(udp_server(store, 2, timeouts, **settings)) for store in stores]
        for _ in range(switches):
            stack.enter_context(udp_switch(servers[0].url, "a", timeouts))
        yield ",".join(server.url for server in servers), servers


def run_of(server: LocalServer | NetworkServer) -> Membership[Any]:
    return server._members if isinstance(server, LocalServer) else server._runs.run


def train(programs: Programs, transport: str, folder: Path, place: str, limit: float) -> list[list[str]]:
    """Train two workers, of which the second is killed at a place, and another takes over; the lines of both."""
    folder.mkdir(parents=True)
    with serve(transport, folder) as (url, servers):
        waits = place == "waiting"
        workers = [
            programs.start(0, url=url, place="after" if waits else "-", limit=limit),
            programs.start(1, url=url, place=place, limit=limit),
        ]
        before: list[list[str]] = [[], []]
        if place != "-":
            before[not waits] = workers[not waits].lines_until_pause()
            if waits:
                first = run_of(servers[0])
                wait_until(lambda: describe(first).present[1].progress.phase == pb.ENDING, "worker 1 to vote")
            workers[1].process.kill()
            before[1] += workers[1].lines()
            wait_until(lambda: all(1 in run_of(server).vacancies for server in servers), "the loss of worker 1")
            workers[1] = programs.start(1, url=url, place="-", limit=limit)
            if waits:
                workers[0].go_on()
        after = [worker.lines() for worker in workers]
        assert [worker.process.returncode for worker in workers] == [0, 0]
        return [before[0] + after[0], before[1] + after[1]]


@pytest.fixture(scope="module")
def workers_of_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with programs(PROGRAM, tmp_path_factory.mktemp("program")) as started:
        yield started


@pytest.fixture
def workers_of_test(workers_of_file: Programs) -> Iterator[Programs]:
    yield workers_of_file
    workers_of_file.kill()


@pytest.fixture(scope="module", params=[0.0, 0.5], ids=["plain", "clipped"])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, workers_of_file: Programs
) -> tuple[float, list]:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return request.param, train(workers_of_file, "shared memory", folder, "-", request.param)


def test_a_worker_whose_time_is_over_counts_as_lost(
    tmp_path: Path, undisturbed: tuple[float, list], workers_of_test: Programs
) -> None:
    """It hangs over TCP, another takes its place, and it is refused when it goes on."""
    hang_and_go_on("tcp", tmp_path, undisturbed, workers_of_test)


def hang_and_go_on(transport: str, tmp_path: Path, undisturbed: tuple[float, list], workers: Programs) -> None:
    """Check that a worker which hangs in the backward pass is fenced: its end changes nothing for the next one."""
    limit, expected = undisturbed
    settings = ServerSettings(
        stores=(tmp_path / "store",),
        workers=2,
        listen="127.0.0.1:0",
        transport=transport,
        memory=MEMORY,
        worker_return_seconds=60,
        step_deadline_seconds=4,
    )
    with NetworkServer(settings, CREDENTIALS, Timeouts(look_seconds=0.1)) as server:
        first, hangs = (
            workers.start(rank, url=server.url, place=place, limit=limit)
            for rank, place in enumerate(("-", "backward"))
        )
        before = hangs.lines_until_pause()
        wait_until(lambda: 1 in server._runs.run.vacancies, "worker 1 to count as lost")
        second = workers.start(1, url=server.url, place="-", limit=limit)
        assert [first.lines(), before + second.lines()] == expected
        hangs.go_on()
        hangs.lines()
        error = hangs.errors.read_text()
        assert hangs.process.returncode == 1
        assert re.search(r"WorkerLostError: worker 1 has made no progress for \d+ s .* counts as lost", error), error


@pytest.mark.parametrize("transport", ["shared memory", "tcp"])
def test_the_run_fails_when_nobody_takes_the_place_in_time(
    transport: str, tmp_path: Path, workers_of_test: Programs
) -> None:
    with serve(transport, tmp_path, seconds=0.5) as (url, _):
        stays, lost = (
            workers_of_test.start(rank, url=url, place=place, limit=0.0) for rank, place in enumerate(("-", "backward"))
        )
        lost.lines_until_pause()
        lost.process.kill()
        stays.lines()
        error = stays.errors.read_text()
        assert stays.process.returncode == 1
        assert (
            "WorkerLostError: worker 1 was lost, and no other joined at its place within 0.5 s; "
            f"the run stands at step {LOST_IN - 1}: run again to resume from there" in error
        )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("transport", ["shared memory", "tcp", TWO_SERVERS])
def test_another_worker_takes_the_place_of_a_lost_one(
    transport: str, place: str, undisturbed: tuple[float, list], tmp_path: Path, workers_of_test: Programs
) -> None:
    limit, expected = undisturbed
    lines = train(workers_of_test, transport, tmp_path / "run", place, limit)
    if place == "waiting":  # its vote counts: what it would have printed after that step is missing
        expected = [expected[0], [line for line in expected[1] if not line.startswith(f"{LOST_IN - 1} ")]]
    assert lines == expected


@pytest.fixture(scope="module", params=[0.0, 0.5], ids=["plain", "clipped"])
def undisturbed_over_udp(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, workers_of_file: Programs
) -> tuple[float, list]:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return request.param, train(workers_of_file, "udp", folder, "-", request.param)


@pytest.mark.parametrize("place", PLACES)
def test_another_worker_takes_the_place_of_a_lost_one_over_udp(
    place: str, undisturbed_over_udp: tuple[float, list], tmp_path: Path, workers_of_test: Programs
) -> None:
    """An attempt is made again also where the lost worker had voted: the sums may lack its packets."""
    limit, expected = undisturbed_over_udp
    assert train(workers_of_test, "udp", tmp_path / "run", place, limit) == expected


def test_a_worker_over_udp_whose_time_is_over_counts_as_lost(
    tmp_path: Path, undisturbed_over_udp: tuple[float, list], workers_of_test: Programs
) -> None:
    """Its socket still receives and repeats packets while another is at its place in the tree."""
    hang_and_go_on("udp", tmp_path, undisturbed_over_udp, workers_of_test)


def test_another_worker_takes_the_place_of_a_lost_one_at_two_servers_over_udp(
    undisturbed_over_udp: tuple[float, list], tmp_path: Path, workers_of_test: Programs
) -> None:
    limit, expected = undisturbed_over_udp
    assert train(workers_of_test, TWO_SERVERS_UDP, tmp_path / "run", "backward", limit) == expected


def test_a_switch_learns_where_the_worker_is_that_took_a_lost_ones_place(
    undisturbed_over_udp: tuple[float, list], tmp_path: Path, workers_of_test: Programs
) -> None:
    limit, expected = undisturbed_over_udp
    assert train(workers_of_test, SWITCHED, tmp_path / "run", "backward", limit) == expected
