"""Sessions over a real server: joining, resuming, sharing, and being refused."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest

import luwu
from harness.stored import contents
from luwu.control.frames import SOCKET_NAME
from luwu.errors import (
    ConfigError,
    LuwuError,
    ManifestMismatchError,
    MemoryBudgetError,
    ServerError,
    StoreLockedError,
    StorePermissionError,
    WorkerLostError,
)
from luwu.server.server import LocalServer
from luwu.session.local import join
from luwu.session.session import Session
from luwu.store.folders import StoreIdentity, read_identity, write_identity

MEMORY = 64 << 20


def equal(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_resume_continues_where_the_last_session_ended(tmp_path: Path) -> None:
    manifest = small_manifest()
    with luwu.open(tmp_path / "once", memory=MEMORY) as session:
        worker = NumpyWorker(session, manifest)
        assert all(worker.step() for _ in range(6))
    for _ in range(3):
        with luwu.open(tmp_path / "often", memory=MEMORY) as session:
            worker = NumpyWorker(session, manifest)
            assert worker.step() and worker.step()
    assert session.step == 6
    assert equal(contents(tmp_path / "once/store"), contents(tmp_path / "often/store"))


def test_a_store_striped_over_folders_holds_the_same(tmp_path: Path) -> None:
    manifest = small_manifest()
    for name, stores in (("one", ["a"]), ("three", ["b", "c", "d"])):
        folders = [tmp_path / store for store in stores]
        with luwu.open(tmp_path / name, stores=folders, memory=MEMORY) as session:
            worker = NumpyWorker(session, manifest)
            worker.step()
            blocks = [worker.read(number) for number in range(len(manifest.blocks))]
        if name == "one":
            expected = blocks
    assert equal(expected, blocks)
    assert all((tmp_path / folder / "version-1.luwu").stat().st_size > 4096 for folder in "bcd")
    with pytest.raises(LuwuError, match="striped over 3 folders"):
        with luwu.open(tmp_path / "three", stores=[tmp_path / "b"], memory=MEMORY) as session:
            session.attach(manifest)


def test_a_rolled_back_step_leaves_no_trace(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory=MEMORY) as session:
        worker = NumpyWorker(session, small_manifest())
        worker.step()
        before = worker.read(1)
        assert not worker.step(spoil=True)
        assert np.array_equal(worker.read(1), before)
        assert (session.step, session.attempts, session.rolled_back) == (1, 2, 1)
        assert worker.step()
        assert not np.array_equal(worker.read(1), before)
    with luwu.open(tmp_path, memory=MEMORY) as session:
        NumpyWorker(session, small_manifest())
        assert (session.step, session.attempts, session.rolled_back) == (2, 3, 1)


def test_another_model_is_refused_by_its_first_differing_parameter(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory=MEMORY) as session:
        NumpyWorker(session, small_manifest()).step()
    kept = contents(tmp_path / "store")
    with pytest.raises(ManifestMismatchError, match=r"h\.0\.weight.*5000.*nothing was changed") as caught:
        with luwu.open(tmp_path, memory=MEMORY) as session:
            session.attach(small_manifest(elements=6000))
    assert "6000" in str(caught.value)
    assert equal(kept, contents(tmp_path / "store"))


def test_a_budget_below_the_minimum_names_the_minimum_and_that_works(tmp_path: Path) -> None:
    with pytest.raises(MemoryBudgetError, match="needs at least") as caught:
        with luwu.open(tmp_path, memory="4KiB") as session:
            session.attach(small_manifest(blocks=30))
    assert not (tmp_path / "store/version-0.luwu").exists()
    minimum = str(caught.value).split("at least ")[1].split(";")[0]
    with luwu.open(tmp_path, memory=minimum) as session:
        assert NumpyWorker(session, small_manifest(blocks=30)).step()


def test_one_run_folder_has_one_server(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory=MEMORY) as session:
        NumpyWorker(session, small_manifest())
        with pytest.raises(StoreLockedError, match=str(os.getpid())):
            luwu.open(tmp_path, memory=MEMORY)
        with pytest.raises(StoreLockedError, match=str(os.getpid())):  # another run over the same store
            with luwu.open(tmp_path / "other", stores=[tmp_path / "store"], memory=MEMORY) as other:
                other.attach(small_manifest())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_without_write_permission(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    process = multiprocessing.get_context("fork").Process(target=_open_as_nobody, args=(locked,))
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
        if parent.name.startswith("pytest-of"):
            break
    process.start()
    process.join()
    assert process.exitcode == 0


def _open_as_nobody(folder: Path) -> None:
    os.setuid(65534)
    with pytest.raises(StorePermissionError, match=str(folder)):
        luwu.open(folder / "run")


def test_ranks_and_numbers_of_workers_must_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rank"):
        luwu.open(tmp_path, rank=2, workers=2)
    with LocalServer(tmp_path, None, MEMORY, 2) as server:
        with pytest.raises(ConfigError, match="started for 2 workers"):
            join(server.socket_path, 0, 3)
        session = join(server.socket_path, 0, 2)
        with pytest.raises(ConfigError, match="joined already"):
            join(server.socket_path, 0, 2)
        session.close()


def _work(socket_path: Path, rank: int, workers: int, steps: int, then: str) -> None:
    try:
        session = join(socket_path, rank, workers)
        worker = NumpyWorker(session, small_manifest())
        for _ in range(steps):
            worker.step()
        if then == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if then == "go on":
            worker.step()
        session.close()
    except WorkerLostError:
        os._exit(42)
    except ServerError:
        os._exit(43)


def _fail(socket_path: Path, rank: int, workers: int, steps: int) -> None:
    with join(socket_path, rank, workers) as session:
        worker = NumpyWorker(session, small_manifest())
        for _ in range(steps):
            worker.step()
        raise RuntimeError("the data ended")


def _read(socket_path: Path, ready: multiprocessing.synchronize.Event, go: multiprocessing.synchronize.Event) -> None:
    with join(socket_path, 1, 2) as session:
        worker = NumpyWorker(session, small_manifest())
        worker.step()
        ready.set()
        go.wait(60)
        worker.read(1)


def _start(target: object, *args: object) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)  # type: ignore[arg-type]
    process.start()
    return process


def _shared_files() -> set[str]:
    """Return the named files through which this process shares memory with others."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    shared = {line[5] for line in lines if line[1].startswith("rw") and line[1].endswith("s") and len(line) > 5}
    return {path for path in shared if path.startswith("/") and not path.endswith("(deleted)")}


def test_workers_in_processes_of_their_own(tmp_path: Path) -> None:
    results = []
    for attempt in ("first", "second"):
        with LocalServer(tmp_path / attempt, None, MEMORY, 3) as server:
            processes = [_start(_work, server.socket_path, rank, 3, 5, "leave") for rank in range(3)]
            for process in processes:
                process.join()
            assert [process.exitcode for process in processes] == [0, 0, 0]
            assert server.step == 5 and server.error() is None and server.workers_lost() == []
            assert _shared_files() == set(), "what has a name may be left behind"
        results.append(contents(tmp_path / attempt / "store"))
    assert equal(*results)


def test_a_worker_that_dies_stops_the_run_at_the_last_commit(tmp_path: Path) -> None:
    with LocalServer(tmp_path, None, MEMORY, 2) as server:
        survivor = _start(_work, server.socket_path, 0, 2, 3, "go on")
        victim = _start(_work, server.socket_path, 1, 2, 3, "die")
        survivor.join()
        victim.join()
        assert (survivor.exitcode, victim.exitcode) == (42, -signal.SIGKILL)
        assert server.step == 3
        assert "worker 1" in server.workers_lost()[0] and "step 3" in server.workers_lost()[0]
    with LocalServer(tmp_path, None, MEMORY, 1) as server:  # and another number of workers goes on
        _start(_work, server.socket_path, 0, 1, 1, "leave").join()
        assert server.step == 4


@pytest.mark.parametrize("how", ["leaves", "fails"])
def test_nobody_waits_for_a_worker_that_is_gone(tmp_path: Path, how: str) -> None:
    with LocalServer(tmp_path, None, MEMORY, 2) as server:
        survivor = _start(_work, server.socket_path, 0, 2, 3, "go on")
        other = (
            (_work, server.socket_path, 1, 2, 3, "leave") if how == "leaves" else (_fail, server.socket_path, 1, 2, 3)
        )
        _start(*other).join()
        survivor.join()
        assert survivor.exitcode == 42
        assert server.step == 3
        assert ("worker 1 left after step 3" if how == "leaves" else "worker 1 ended without") in (server.error() or "")


def test_an_embedded_server_waits_for_the_others_to_leave(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    with luwu.open(tmp_path, memory=MEMORY, rank=0, workers=2) as session:
        reader = _start(_read, tmp_path / "luwu.sock", ready, go)
        NumpyWorker(session, small_manifest()).step()
        assert ready.wait(60)
        closing = threading.Thread(target=session.close)
        closing.start()
        closing.join(1)  # long enough for a close that does not wait
        assert closing.is_alive()
        go.set()
        reader.join()
        closing.join()
    assert reader.exitcode == 0


def test_a_worker_may_join_while_the_server_starts_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[Session] = []
    start = threading.Thread.start

    def start_and_join(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "luwu-accept":
            joined.append(join(tmp_path / SOCKET_NAME, rank=1, workers=2))

    monkeypatch.setattr(threading.Thread, "start", start_and_join)
    with LocalServer(tmp_path, None, MEMORY, workers=2):
        joined[0].close()


def test_a_rank_joins_a_server_once(tmp_path: Path) -> None:
    with LocalServer(tmp_path, None, MEMORY, 1) as server:
        with join(server.socket_path, 0, 1) as session:
            NumpyWorker(session, small_manifest()).step()
        server.wait_for_leaves(60)
        with pytest.raises(ConfigError, match="worker 0 has left this server; start the server again"):
            join(server.socket_path, 0, 1)


def test_a_manifest_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(StorePermissionError, match=r"cannot read .*manifest\.json"):
        read_identity(tmp_path)
    identity = StoreIdentity("0" * 32, 1, small_manifest())
    with pytest.raises(StorePermissionError, match=r"cannot write .*manifest\.json"):
        write_identity([tmp_path], identity)


def _serve(run_dir: Path, ready: multiprocessing.synchronize.Event, memory: int = MEMORY) -> None:
    with LocalServer(run_dir, None, memory, 1):
        ready.set()
        signal.pause()


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def test_a_server_stays_within_its_budget_and_the_stated_constant(tmp_path: Path) -> None:
    budget, constant = 48 << 20, 128 << 20
    manifest = small_manifest(blocks=24, elements=1 << 20, chunk_elements=1 << 18)
    ready = multiprocessing.get_context("spawn").Event()
    server = _start(_serve, tmp_path, ready, budget)
    assert ready.wait(60)
    with join(tmp_path / "luwu.sock", 0, 1) as session:
        worker = NumpyWorker(session, manifest)
        assert all(worker.step() for _ in range(3))
        peak = _peak_bytes(server.pid or 0)
    server.kill()
    server.join()
    store_bytes = 12 * sum(block.elements for block in manifest.blocks)
    assert store_bytes > budget + constant
    assert peak <= budget + constant


def test_a_server_that_is_killed_is_noticed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    server = spawn.Process(target=_serve, args=(tmp_path, ready))
    server.start()
    assert ready.wait(60)
    with join(tmp_path / "luwu.sock", 0, 1) as session:
        worker = NumpyWorker(session, small_manifest())
        worker.step()
        worker.step()  # answered, so the one before it is on the disk
        server.kill()
        server.join()
        with pytest.raises(ServerError, match="resume"):
            for _ in range(100):
                worker.step()
    with luwu.open(tmp_path, memory=MEMORY) as session:
        NumpyWorker(session, small_manifest())
        assert session.step >= 1
