"""Snapshots of real runs: taken every few steps, through kills, and gone back to."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import numpy as np
import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.integration.test_network_servers import servers, url_of
from tests.integration.udp import in_threads, remote, train, udp_server

import luwu
from harness.network.namespaces import wait_until
from harness.small_disk import SmallDisk
from harness.stored import contents
from harness.training import finish, prepare_small_run, start, start_small_run, steps_of, wait_for_steps
from luwu.errors import ManifestMismatchError, StoreSpaceError, WorkerLostError
from luwu.server.server import LocalServer
from luwu.store.opening import open_reader
from luwu.store.settings import Snapshots
from luwu.store.snapshots import restore, snapshot_folders, snapshot_steps
from luwu.store.verifying import verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

WORKERS = 2
MEMORY = 64 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_small_run(tmp_path_factory.mktemp("snapshots"), workers=1)


def luwu_command(folder: Path, *arguments: str) -> str:
    code, output, error = finish(start(folder, *arguments))
    assert code == 0, error
    return output


def equal(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_a_run_that_is_killed_and_restored_is_the_undisturbed_one(folder: Path) -> None:
    code, _, error = finish(start_small_run(folder, "plain"))
    assert code == 0, error
    expected, final = steps_of(folder, "plain"), contents(folder / "plain" / "store")

    kept = ("--snapshot-every", "10", "--snapshot-keep", "3")
    process = start_small_run(folder, "run", *kept)
    wait_for_steps(folder, "run", 25)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    store = folder / "run" / "store"
    killed_at = int(open_reader([store])[0].step)
    assert set(snapshot_steps([store])) <= set(range(10, killed_at + 1, 10))
    code, _, error = finish(start_small_run(folder, "run", *kept))
    assert code == 0, error
    assert snapshot_steps([store]) == [40, 50, 60]
    assert steps_of(folder, "run") == expected
    assert equal(contents(store), final)
    for step in (40, 50, 60):
        assert verify(snapshot_folders([store], step)).damaged == 0

    luwu_command(folder, "snapshot", "restore", "run", "--step", "40")
    code, output, error = finish(start_small_run(folder, "run"))
    assert code == 0, error
    assert "resuming after step 40 of 60" in output
    assert steps_of(folder, "run") == expected
    assert equal(contents(store), final)


def test_a_snapshot_is_measured_and_written_with_while_the_run_goes_on(folder: Path) -> None:
    process = start_small_run(folder, "busy", "--steps", "100000", "--workers", "1")
    try:
        wait_for_steps(folder, "busy", 8)
        step = luwu_command(folder, "snapshot", "take", "busy").split()[-1]
        assert f"step {step}" in luwu_command(folder, "eval", "busy", "--snapshot", step, "--windows", "4")
        assert luwu_command(folder, "generate", "busy", "--snapshot", step, "--length", "3")
        assert luwu_command(folder, "export", "out", "--store", "busy", "--snapshot", step)
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        code, _, error = finish(process)
    assert code == 130, error


def test_a_full_disk_refuses_a_snapshot_and_lets_the_training_be(small_disk: SmallDisk) -> None:
    with LocalServer(small_disk.path, None, MEMORY, 1, snapshots=Snapshots(3, 0)) as server:
        session = luwu.session.local.join(server.socket_path, 0, 1)
        worker = NumpyWorker(session, small_manifest())
        assert worker.step()
        with (small_disk.path / "filler").open("wb") as filler, pytest.raises(OSError, match="No space left"):
            while True:
                filler.write(bytes(1 << 16))
        with pytest.raises(StoreSpaceError, match=r"needs .* [KM]iB .*remove a snapshot"):
            session.snapshot()
        for _ in range(3):
            assert worker.step()
        given_up = "the snapshot of step 3 was given up"  # once that step is on the disk
        wait_until(lambda: given_up in server.stats()["snapshot_failure"], given_up, 60)
        (small_disk.path / "filler").unlink()
        assert session.snapshot() == 4
        for _ in range(3):
            assert worker.step()
        session.close()
    assert snapshot_steps([small_disk.path / "store"]) == [4, 6]
    assert verify([small_disk.path / "store"]).damaged == 0


def test_an_old_snapshot_that_cannot_be_removed_is_told_and_new_ones_are_taken(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with LocalServer(tmp_path, None, MEMORY, 1, snapshots=Snapshots(1, 1)) as server:
        session = luwu.session.local.join(server.socket_path, 0, 1)
        worker = NumpyWorker(session, small_manifest())
        assert worker.step()
        wait_until(lambda: server.stats()["snapshots"] == 1, "a snapshot", 60)
        record = snapshot_folders([store], 1)[0] / "snapshot.luwu"
        whole = record.read_bytes()
        record.write_bytes(b"damaged")
        assert worker.step()
        wait_until(lambda: server.stats()["snapshot_failure"] != "", "a failure to remove one", 60)
        assert server.stats()["snapshot_failure"].startswith("older snapshots stay: ")
        assert server.stats()["snapshots"] == 2
        record.write_bytes(whole)
        assert worker.step()
        session.close()
    assert snapshot_steps([store]) == [3]


def test_several_servers_keep_the_same_steps_and_go_back_together(tmp_path: Path) -> None:
    stores = [tmp_path / f"store-{number}" for number in range(2)]

    def some(worker: NumpyWorker) -> int:
        for _ in range(3):
            assert worker.step()
        return worker.session.snapshot()

    def on(worker: NumpyWorker) -> None:
        for _ in range(2):
            assert worker.step()

    with servers(tmp_path, 2) as found:
        assert train(remote(url_of(*found), WORKERS), WORKERS, some, coarse=True) == [3, 3]
    with servers(tmp_path, 2) as found:
        train(remote(url_of(*found), WORKERS), WORKERS, on, coarse=True)
    expected = [contents(store) for store in stores]
    for store in stores:
        assert snapshot_steps([store]) == [3]
    restore([stores[1]], 3)
    with servers(tmp_path, 2) as found:
        url = url_of(*found)

        def join(rank: int) -> str:
            with remote(url, WORKERS)(rank) as session:
                try:
                    session.attach(small_manifest())
                except ManifestMismatchError as error:
                    return str(error)
                except WorkerLostError:  # the other worker got the error first, and has left
                    return ""
            raise AssertionError("expected servers at different steps to be refused")

        told = "".join(in_threads(WORKERS, join))
        assert re.search(r"expected step 3 .*luwu snapshot restore STORE --step 3", told)
    restore([stores[0]], 3)
    with servers(tmp_path, 2) as found:
        train(remote(url_of(*found), WORKERS), WORKERS, on, coarse=True)
    for store, held in zip(stores, expected, strict=True):
        assert equal(contents(store), held)


def test_a_server_of_the_network_keeps_every_other_step(tmp_path: Path) -> None:
    def work(worker: NumpyWorker) -> None:
        for _ in range(6):
            assert worker.step()

    for number in range(2):
        with udp_server(tmp_path / f"s{number}", 1, transport="tcp", snapshot_every=2, snapshot_keep=number) as server:
            train(remote(server.url, 1), 1, work)
    assert snapshot_steps([tmp_path / "s0"]) == [2, 4, 6]
    assert snapshot_steps([tmp_path / "s1"]) == [6]
