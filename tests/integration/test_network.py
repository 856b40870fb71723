"""Workers and servers on a network: real processes over loopback, ports chosen by the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.integration import network
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.integration.network import (
    EXIT_AUTHENTICATION,
    EXIT_SERVER,
    EXIT_WORKER_LOST,
    KEY,
    ServerProcess,
    finish,
    run_workers,
    start,
    work,
)

import luwu
from harness.stored import contents
from luwu.control.credentials import TlsFiles
from luwu.control.timeouts import Timeouts
from luwu.errors import AuthenticationError, ConfigError, ManifestMismatchError, ServerError
from luwu.server.server import LocalServer
from luwu.session.local import join
from luwu.store.opening import open_reader

MEMORY = 64 << 20
EXAMPLE = Path(__file__).parents[2] / "examples/ten_lines.py"


def equal(left: Path, right: Path) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(contents(left), contents(right), strict=True))


def work_locally(socket_path: Path, rank: int, workers: int, steps: int) -> None:
    with join(socket_path, rank, workers) as session:
        worker = NumpyWorker(session, small_manifest())
        for _ in range(steps):
            worker.step()


def train_locally(run: Path, workers: int, steps: int) -> None:
    with LocalServer(run, None, MEMORY, workers) as server:
        processes = [start(work_locally, server.socket_path, rank, workers, steps) for rank in range(workers)]
        assert finish(*processes) == [0] * workers


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_same_bits_as_on_one_host(tmp_path: Path, workers: int) -> None:
    train_locally(tmp_path / "local", workers, 5)
    with ServerProcess(tmp_path / "store", workers) as server:
        assert run_workers(server.url, workers, 5) == [0] * workers
        assert server.stop() == 0
    assert equal(tmp_path / "local/store", tmp_path / "store")
    for words in (f"serves {server.url}", "joined worker 0", "left worker 0", "ended job="):
        assert words in server.logged()


def test_one_server_takes_one_set_of_workers_after_another(tmp_path: Path) -> None:
    train_locally(tmp_path / "local", 2, 6)
    with ServerProcess(tmp_path / "store", 2) as server:
        for _ in range(3):
            assert run_workers(server.url, 2, 2) == [0, 0]
        assert server.stop() == 0
    assert equal(tmp_path / "local/store", tmp_path / "store")


def test_another_number_of_workers_goes_on(tmp_path: Path) -> None:
    for workers, steps in ((2, 2), (1, 3), (4, 1)):
        train_locally(tmp_path / "local", workers, steps)
        with ServerProcess(tmp_path / "store", workers) as server:
            assert run_workers(server.url, workers, steps) == [0] * workers
            assert server.stop() == 0
    assert equal(tmp_path / "local/store", tmp_path / "store")


def test_refusals_name_what_is_wrong_and_leave_the_server_serving(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", 1) as server:
        with luwu.connect(server.url, key=KEY) as session:
            NumpyWorker(session, small_manifest()).step()
        with pytest.raises(AuthenticationError, match="the job key is not the server's"):
            luwu.connect(server.url, key=KEY[::-1])
        with pytest.raises(AuthenticationError, match="asks for a job key, none was given"):
            luwu.connect(server.url)
        with pytest.raises(ConfigError, match=r"worker 0 of 2 cannot join: this server was started for 1 worker$"):
            luwu.connect(server.url, rank=0, workers=2, key=KEY)
        for other, words in (
            (small_manifest(elements=6000), r"h\.0\.weight.*6000.*5000"),
            (small_manifest(dtype="bfloat16"), "dtype: expected bfloat16, found float32"),
            (small_manifest(chunk_elements=4096), "chunk size: expected 4096 elements, found 2048"),
        ):
            with pytest.raises(ManifestMismatchError, match=words):
                with luwu.connect(server.url, key=KEY) as session:
                    session.attach(other)
        with luwu.connect(server.url, key=KEY) as session:
            assert NumpyWorker(session, small_manifest()).step()
            assert session.step == 2
    assert "refused=2" in server.logged()


def test_a_server_that_is_not_there_is_named_within_the_time(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", 1) as server:
        assert server.stop() == 0
    with pytest.raises(ServerError, match=rf"no server answered at {server.url} within 1 s"):
        luwu.connect(server.url, key=KEY, timeouts=Timeouts(connect_seconds=1))


def test_a_server_that_is_killed_is_noticed_and_can_be_started_again(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", 2) as server:
        workers = [start(work, server.url, rank, 2, 3, "go on") for rank in range(2)]
        wait_for_step(server, tmp_path, 3)
        server.process.kill()
        assert finish(*workers) == [EXIT_SERVER, EXIT_SERVER]
    with ServerProcess(tmp_path / "store", 1) as server:
        with luwu.connect(server.url, key=KEY) as session:
            worker = NumpyWorker(session, small_manifest())
            assert session.step >= 3 and worker.step()


def test_a_server_that_is_stopped_tells_its_workers(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", 1) as server:
        with luwu.connect(server.url, key=KEY) as session:
            worker = NumpyWorker(session, small_manifest())
            worker.step()
            assert server.stop() == 0
            with pytest.raises(ServerError, match=r"the server at luwu://.* was stopped; the store stands at step 1"):
                while True:
                    worker.step()


def test_a_worker_that_is_killed_fails_the_others_and_the_next_ones_are_served(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", 2) as server:
        survivor = start(work, server.url, 0, 2, 3, "go on")
        victim = start(work, server.url, 1, 2, 3, "die")
        assert finish(survivor, victim) == [EXIT_WORKER_LOST, -signal.SIGKILL]
        assert "lost worker 1" in server.logged()
        assert run_workers(server.url, 2, 2) == [0, 0]
        assert server.stop() == 0
    train_locally(tmp_path / "local", 2, 5)
    assert equal(tmp_path / "local/store", tmp_path / "store")


def test_mutual_tls_lets_in_who_has_a_certificate_of_the_authority(tmp_path: Path) -> None:
    authority, stranger = network.make_authority(tmp_path, "ours"), network.make_authority(tmp_path, "stranger")
    served = network.make_certificate(tmp_path, "server", authority)
    ours = network.make_certificate(tmp_path, "worker", authority)
    theirs = network.make_certificate(tmp_path, "other", stranger)
    flags = ("--tls-cert", served.certificate, "--tls-key", served.key, "--tls-ca", served.authority)
    train_locally(tmp_path / "local", 2, 2)
    with ServerProcess(tmp_path / "store", 2, *map(str, flags), key=None) as server:
        assert run_workers(server.url, 2, 2, ours) == [0, 0]
        half = TlsFiles(theirs.certificate, theirs.key, authority)  # trusts the server, which does not trust it
        for wrong in (theirs, half, None):
            with pytest.raises(AuthenticationError, match=server.url.removeprefix("luwu://")):
                luwu.connect(server.url, rank=0, workers=2, tls=wrong, timeouts=Timeouts(connect_seconds=20))
        assert server.stop() == 0
    assert equal(tmp_path / "local/store", tmp_path / "store")


def test_a_worker_with_certificates_meets_a_server_without(tmp_path: Path) -> None:
    authority = network.make_authority(tmp_path, "ours")
    ours = network.make_certificate(tmp_path, "worker", authority)
    with ServerProcess(tmp_path / "store", 1) as server:
        finished = finish(start(work, server.url, 0, 1, 1, "leave", ours))
    assert finished == [EXIT_AUTHENTICATION]


def luwu_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "luwu.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, env=os.environ | environment)


def test_health(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", 1, "--url-file", str(tmp_path / "url")) as server:
        assert (tmp_path / "url").read_text().strip() == server.url
        healthy = luwu_command("health", server.url)
        assert (healthy.returncode, healthy.stdout) == (0, f"{server.url} serving\n")
        server.stop()
        gone = luwu_command("health", server.url)
        assert gone.returncode == 1 and "refused the connection: no server listens there" in gone.stderr
    assert luwu_command("health", "http://nowhere").returncode == 2


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    store, key = ("--store", str(tmp_path / "store"), "--workers", "1"), {"LUWU_JOB_KEY": KEY}
    assert luwu_command("server", *store).returncode == 2
    unknown = luwu_command("server", *store, "--transport", "pigeon", **key)
    assert unknown.returncode == 2 and "server.transport: expected 'tcp' or 'udp', found 'pigeon'" in unknown.stderr
    fewest = luwu_command("server", *store, "--min-workers", "2", **key)
    assert fewest.returncode == 2
    assert "server.min_workers: expected at most server.workers (1), found 2" in fewest.stderr
    (tmp_path / "settings.toml").write_text("[timeouts]\nconnect_secs = 5\n")
    misspelt = luwu_command("server", *store, "--config", str(tmp_path / "settings.toml"), **key)
    assert misspelt.returncode == 2 and "timeouts.connect_secs: no such setting" in misspelt.stderr
    with ServerProcess(tmp_path / "store", 1) as server:
        second = luwu_command("server", *store, "--listen", "127.0.0.1:0", **key)
        assert second.returncode == 1 and str(server.process.pid) in second.stderr


@pytest.mark.slow
def test_a_script_under_torchrun_is_a_set_of_workers(tmp_path: Path) -> None:
    (tmp_path / "job.key").write_text(KEY)
    with ServerProcess(tmp_path / "store", 2) as server:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        finished = subprocess.run(
            [*command, str(EXAMPLE), server.url],
            capture_output=True,
            text=True,
            timeout=100,
            env=os.environ | {"LUWU_JOB_KEY_FILE": str(tmp_path / "job.key"), "OMP_NUM_THREADS": "1"},
        )
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.count("step 20: loss") == 1  # of two workers one prints


def wait_for_step(server: ServerProcess, tmp_path: Path, step: int) -> None:
    """Return when the store has a committed step from there on; the store itself is what tells."""
    while server.process.poll() is None:
        try:
            reader, _ = open_reader([tmp_path / "store"])
        except luwu.errors.LuwuError:  # it is being made
            continue
        if reader.step >= step:
            return
