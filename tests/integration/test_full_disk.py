"""A full disk pauses a run over every transport: the run reports it, goes on, and has the undisturbed run's bits."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.integration.test_network import equal
from tests.integration.udp import MEMORY, QUICK, Join, remote, train, udp_server

from harness.network.namespaces import wait_until
from harness.small_disk import SmallDisk, share_versions
from harness.training import (
    finish,
    prepare_small_run,
    start_small_run,
    steps_of,
    wait_for_line,
    wait_for_steps,
)
from luwu.control.credentials import Credentials
from luwu.control.health import check_health
from luwu.control.status import ask_local_status
from luwu.core.durability import parse_durable
from luwu.core.room import RoomWait
from luwu.errors import StoreSpaceError
from luwu.server.server import LocalServer
from luwu.session.local import join
from luwu.store.upkeep import info

STEPS = 5
FULL_BEFORE = (3, 4)
WAIT_SECONDS = 120.0


class OnPause(logging.Handler):
    """Clears the disk when the log says that it is full; `health` has the server's answers at that moment."""

    def __init__(self, disk: SmallDisk) -> None:
        super().__init__()
        self.disk = disk
        self.url = ""
        self.health: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        wait = record.args[0] if isinstance(record.args, tuple) else None
        if self.url and not isinstance(wait, str):
            self.health.append(check_health(self.url, Credentials()))
        self.disk.say(None if isinstance(wait, str) else wait)  # type: ignore[arg-type]


@pytest.fixture
def on_pause(small_disk: SmallDisk) -> Iterator[OnPause]:
    """Listens to the log."""
    handler, logger = OnPause(small_disk), logging.getLogger("luwu.room")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


class Served(NamedTuple):
    """A server: a function that joins it, its counts, and its URL on the network."""

    joined: Join
    stats: Callable[[], dict[str, Any]]
    url: str = ""


@contextmanager
def served(
    transport: str, run: Path, workers: int, wait_seconds: float = WAIT_SECONDS, durable: str = "step"
) -> Iterator[Served]:
    """A server whose store is `run`/store."""
    if transport == "shared memory":
        points = parse_durable(durable)
        with LocalServer(
            run, None, MEMORY, workers, disk_full_wait_seconds=wait_seconds, commit_points=points
        ) as local:
            yield Served(lambda rank: join(local.socket_path, rank, workers), local.stats)
    else:
        wanted = {"transport": transport, "disk_full_wait_seconds": wait_seconds, "durable": durable}
        with udp_server(run / "store", workers, QUICK, **wanted) as server:
            yield Served(remote(server.url, workers), server.stats, server.url)


def run_steps(server: Served, workers: int, max_norm: float | None, disk: SmallDisk | None = None) -> None:
    """Run some steps; before some of them fill the disk, and take the room of the file that they write to."""

    def work(worker: NumpyWorker) -> None:
        worker.max_grad_norm = max_norm
        for step in range(1, STEPS + 1):
            if disk is not None and worker.session.rank == 0 and step in FULL_BEFORE:
                wait_until(lambda: not server.stats().get("unwritten"), "the step before is written, or never")
                disk.punch(next(disk.path.rglob(f"version-{step % 2}.luwu")))
                disk.fill()
            assert worker.step()

    train(server.joined, workers, work)


@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("transport", ["shared memory", "tcp", "udp"])
def test_a_run_waits_for_room_and_has_the_undisturbed_ones_bits(
    small_disk: SmallDisk, on_pause: OnPause, tmp_path: Path, transport: str, max_norm: float | None
) -> None:
    with served(transport, tmp_path / "undisturbed", 2) as server:
        run_steps(server, 2, max_norm)
    with served(transport, small_disk.path, 2) as server:
        on_pause.url = server.url
        run_steps(server, 2, max_norm, small_disk)
    assert [wait is None for wait in small_disk.said].count(False) >= len(FULL_BEFORE)
    assert set(on_pause.health) == ({"paused"} if server.url else set())
    assert equal(tmp_path / "undisturbed" / "store", small_disk.path / "store")


@pytest.mark.parametrize("transport", ["shared memory", "tcp", "udp"])
def test_steps_that_are_in_memory_alone_wait_for_room_at_the_end(
    small_disk: SmallDisk, on_pause: OnPause, tmp_path: Path, transport: str
) -> None:
    with served(transport, tmp_path / "undisturbed", 2) as server:
        run_steps(server, 2, None)
    with served(transport, small_disk.path, 2, durable="stop") as server:

        def work(worker: NumpyWorker) -> None:
            assert all(worker.step() for _ in range(STEPS))
            if worker.session.rank == 0:
                for version in small_disk.path.rglob("version-*.luwu"):
                    small_disk.punch(version)
                small_disk.fill()

        train(server.joined, 2, work)
    assert [wait is None for wait in small_disk.said] == [False, True]
    assert equal(tmp_path / "undisturbed" / "store", small_disk.path / "store")


def test_a_wait_for_room_at_the_end_is_given_up(small_disk: SmallDisk) -> None:
    said: list[RoomWait | None] = []
    points = parse_durable("stop")
    with (
        pytest.raises(StoreSpaceError, match=rf"needs .* for {small_disk.path}/store/.*free some space"),
        LocalServer(
            small_disk.path, None, MEMORY, 1, disk_full_wait_seconds=WAIT_SECONDS, commit_points=points,
            on_room=said.append, gives_up=lambda: said != [],
        ) as server,
    ):  # fmt: skip
        with join(server.socket_path, 0, 1) as session:
            worker = NumpyWorker(session, small_manifest())
            assert worker.step() and worker.step()
        share_versions(small_disk.path / "store")
        small_disk.fill()
    assert said[0] is not None
    small_disk.clear()
    with served("shared memory", small_disk.path, 1) as again, again.joined(0) as session:
        session.attach(small_manifest())
        assert session.step == 0


@pytest.mark.parametrize("transport", ["shared memory", "tcp", "udp"])
def test_a_run_that_is_not_to_wait_ends_with_the_typed_error(
    small_disk: SmallDisk, tmp_path: Path, transport: str
) -> None:
    with (
        pytest.raises(StoreSpaceError, match=rf"cannot write {small_disk.path}.*No space left .* free some space"),
        served(transport, small_disk.path, 1, wait_seconds=0.0) as server,
    ):
        run_steps(server, 1, None, small_disk)
    small_disk.clear()
    with served(transport, small_disk.path, 1) as server, server.joined(0) as session:
        session.attach(small_manifest())
        assert session.step == FULL_BEFORE[0] - 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text and the settings of a small run."""
    return prepare_small_run(tmp_path_factory.mktemp("full"), workers=1)


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> list[tuple[int, int, float, float]]:
    """The steps of a run that always had room."""
    code, _, error = finish(start_small_run(folder, "undisturbed"), 300)
    assert code == 0, error
    return steps_of(folder, "undisturbed")


SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]


class TestTrainCommand:
    """`luwu train` with its run folder, or its store, on a small disk."""

    pytestmark = SLOW

    def test_a_full_run_folder_pauses_it(
        self, small_disk: SmallDisk, folder: Path, undisturbed: list[tuple[int, int, float, float]]
    ) -> None:
        run = str(small_disk.path / "run")
        process = start_small_run(folder, run, "--store", str(folder / "store-elsewhere"))
        wait_for_steps(folder, run, 3)
        small_disk.fill()
        line = wait_for_line(process, "paused: ")
        assert f"paused: {run} needs at least" in line and "waits until 20" in line
        wait_for_line(process, f"alert raised: the disk of {run} is nearly full")
        assert line.strip().endswith(ask_local_status(small_disk.path / "run").pause)
        assert (small_disk.path / "run" / "metrics.jsonl").read_text().endswith("}\n")
        small_disk.clear()
        code, output, error = finish(process, 300)
        assert code == 0, error
        assert "there is room again" in output
        assert steps_of(folder, run) == undisturbed
        assert (small_disk.path / "run" / "loss.png").stat().st_size > 1000

    def test_workers_wait_for_a_full_run_folder_and_ctrl_c_tells_the_stores_step(
        self, small_disk: SmallDisk, folder: Path, undisturbed: list[tuple[int, int, float, float]]
    ) -> None:
        run, store = small_disk.path / "run", folder / "store-of-waiting"
        process = start_small_run(folder, str(run), "--store", str(store))
        wait_for_steps(folder, str(run), 3)
        small_disk.fill()
        wait_for_line(process, "paused: ")
        rows = len(steps_of(folder, str(run)))
        process.send_signal(signal.SIGINT)
        code, output, error = finish(process, 300)
        assert code == 130, error
        step = info([store]).step
        assert step is not None and step <= rows + 10
        assert f"stopped after step {step} of 60" in output
        small_disk.clear()
        code, output, error = finish(start_small_run(folder, str(run), "--store", str(store)), 300)
        assert code == 0, error
        assert f"resuming after step {step} of 60" in output
        assert steps_of(folder, str(run)) == undisturbed

    def test_ctrl_c_twice_ends_a_paused_run_at_once(
        self, small_disk: SmallDisk, folder: Path, undisturbed: list[tuple[int, int, float, float]]
    ) -> None:
        store = small_disk.path / "store"
        process = start_small_run(folder, "stopped", "--store", str(store))
        wait_for_steps(folder, "stopped", 3)
        small_disk.fill()
        share_versions(store)
        assert f"paused: {store} needs at least" in wait_for_line(process, "paused: ")
        process.send_signal(signal.SIGINT)
        line = wait_for_line(process, f"paused: {store}")  # for the step that was answered last
        assert "Ctrl-C or SIGTERM once more ends without them" in line
        process.send_signal(signal.SIGINT)
        code, _, error = finish(process, 300)
        assert code == 1 and "free some space" in error
        small_disk.clear()
        code, output, error = finish(start_small_run(folder, "stopped", "--store", str(store)), 300)
        assert code == 0, error
        assert "resuming after step" in output
        assert steps_of(folder, "stopped") == undisturbed

    @pytest.mark.parametrize("given_up", [False, True])
    def test_steps_in_memory_alone_wait_for_room_until_ctrl_c(
        self, small_disk: SmallDisk, folder: Path, undisturbed: list[tuple[int, int, float, float]], given_up: bool
    ) -> None:
        store = small_disk.path / "store"
        run = f"memory-alone-{given_up}"
        process = start_small_run(folder, run, "--store", str(store), "--durable", "stop")
        wait_for_steps(folder, run, 3)
        share_versions(store)
        small_disk.fill()
        process.send_signal(signal.SIGINT)
        line = wait_for_line(process, "paused: ")
        assert f"paused: {store} needs at least" in line and "Ctrl-C or SIGTERM once more ends without them" in line
        if given_up:
            process.send_signal(signal.SIGINT)
        else:
            small_disk.clear()
        code, output, error = finish(process, 300)
        small_disk.clear()
        assert code == (1 if given_up else 130), error
        made = len(steps_of(folder, run))
        if given_up:
            assert "free some space" in error
        else:
            assert f"stopped after step {made} of 60" in output
        code, output, error = finish(start_small_run(folder, run, "--store", str(store)), 300)
        assert code == 0, error
        if given_up:
            assert f"resuming after step 0 of 60; steps 1 to {made} are not in the store, and are made again" in output
        else:
            assert f"resuming after step {made} of 60\n" in output
        assert steps_of(folder, run) == undisturbed

    def test_a_run_that_is_not_to_wait_ends_in_one_line(
        self, small_disk: SmallDisk, folder: Path, undisturbed: list[tuple[int, int, float, float]]
    ) -> None:
        run = str(small_disk.path / "run")
        process = start_small_run(folder, run, "--disk-full-wait-seconds", "0")
        wait_for_steps(folder, run, 3)
        small_disk.fill()
        share_versions(small_disk.path / "run" / "store")
        code, _, error = finish(process, 300)
        assert code == 1
        assert error.startswith("luwu: ") and "free some space" in error and error.count("\n") == 1
        small_disk.clear()
        code, _, error = finish(start_small_run(folder, run), 300)
        assert code == 0, error
        assert steps_of(folder, run) == undisturbed
