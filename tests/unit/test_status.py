"""`luwu status`: whoever has the key, or the run folder, learns the step, what workers do, and who waits for whom."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.documented_keys import check_keys, documented
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.unit.fake_core import FakeCore
from tests.unit.network_serving import KEY, QUICK, join
from typer.testing import CliRunner

import luwu
from luwu.cli.main import app
from luwu.cli.status import lines_of, record_of
from luwu.control import control_pb2 as pb
from luwu.control.credentials import Credentials
from luwu.control.frames import SOCKET_NAME
from luwu.control.health import check_health
from luwu.control.status import ask_local_status, ask_status
from luwu.core.errors import AuthenticationError, ConfigError, ServerError, WorkerLostError
from luwu.core.progress import BlockView
from luwu.core.room import RoomWait
from luwu.launch import asking
from luwu.launch.job import Job, ServerAccess
from luwu.launch.run_paths import RunPaths
from luwu.launch.settings import build_settings
from luwu.server.description import describe
from luwu.server.gate import Gate
from luwu.server.network import NetworkServer
from luwu.server.server import LocalServer
from luwu.server.settings import ServerSettings
from luwu.server.topology import star
from luwu.session.local import join as join_locally
from luwu.store.run_record import Claim, Counts, RunRecord, claim_store
from luwu.watch.runs import WatchedRun


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NetworkServer]:
    settings = ServerSettings(stores=(tmp_path / "store",), workers=2, listen="127.0.0.1:0")
    with NetworkServer(settings, KEY, QUICK, start_core=FakeCore, plan=star) as serving:
        yield serving


def report(rank: int, attempts: int = 3, phase: str = "BACKWARD", pushed: int = 1, place: str = "") -> pb.WorkerStatus:
    link = pb.LinkCounts(transport="udp", at_seconds=9, received_bytes=7000, sent_bytes=80, packets_again=3)
    told = pb.ProgressRequest(
        attempts=attempts, phase=phase, block="h.1", acquired=4, pushed=pushed, place=place, link=link
    )
    return pb.WorkerStatus(rank=rank, progress=told, heard_seconds=2.4)


def test_of_several_servers_the_first_is_asked(server: NetworkServer, tmp_path: Path) -> None:
    nobody = "127.0.0.1:9"
    assert asking.ask_run(f"{server.url},{nobody}", KEY).workers == 2
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY.key)
    key_file.chmod(0o600)
    elsewhere = ServerAccess(url=f"{server.url},{nobody}", key_file=str(key_file))
    job = Job(settings=build_settings({}), folder=str(tmp_path), socket_path=None, launcher_pid=7, server=elsewhere)
    job.write(RunPaths(tmp_path).job_path)
    assert asking.ask_run(str(tmp_path)).workers == 2


def write_job(folder: Path, server: NetworkServer, run_id: str) -> None:
    """Write the job of a run of this id, whose workers reach the server over the network."""
    folder.mkdir(exist_ok=True)
    (folder / "key").write_bytes(KEY.key)
    (folder / "key").chmod(0o600)
    job = Job(
        settings=build_settings({}), folder=str(folder), socket_path=None, launcher_pid=7,
        server=ServerAccess(url=server.url, key_file=str(folder / "key")),
        claim=Claim(RunRecord(run_id, str(folder))).to_json(),
    )  # fmt: skip
    job.write(RunPaths(folder).job_path)


def test_a_run_whose_server_has_another_run_now_is_not_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeCore, "look", lambda _: b"", raising=False)
    first, second = tmp_path / "first", tmp_path / "second"
    settings = ServerSettings(stores=(tmp_path / "store",), workers=1, listen="127.0.0.1:0")
    with NetworkServer(settings, KEY, QUICK, start_core=FakeCore, plan=star) as server, join(server) as session:
        write_job(first, server, "one")
        write_job(second, server, "two")
        assert asking.ask_run(str(first)).run == ""  # none has claimed the store yet
        session.claim = Claim(RunRecord("two", str(second)))
        NumpyWorker(session, small_manifest())
        assert asking.ask_run(str(second)).run == "two" and asking.server_of(second) is not None
        for command in ("status", "trace"):
            told = CliRunner().invoke(app, [command, str(first)])
            assert told.exit_code == 2 and "has another run now" in told.stderr
        watched = WatchedRun(str(first))
        watched.refresh()
    assert watched.state["ended"] and not watched.state["live"] and watched.unseen is None


def test_a_server_tells_the_missing_the_present_and_what_they_do(server: NetworkServer) -> None:
    before = ask_status(server.url, KEY, QUICK)
    assert (before.open, before.workers, list(before.present), list(before.missing)) == (False, 2, [], [0, 1])
    with join(server, 1, 2) as session:
        server._runs.run.progress.expect(1)  # as it attaches
        session.send_progress(report(1).progress)
        for call in session._progress_calls.values():
            call.result(60)
        reply = ask_status(server.url, KEY, QUICK)
    (worker,) = reply.present
    assert (worker.rank, list(reply.missing)) == (1, [0, 1])
    assert worker.peer.startswith("127.0.0.1:")
    assert worker.progress == report(1).progress
    assert 0 <= worker.heard_seconds < 60


WAIT = RoomWait("/runs/first", 722, 1e9)


def test_a_server_tells_that_its_launcher_waits_for_room(server: NetworkServer) -> None:
    server.note_wait(WAIT)
    assert ask_status(server.url, KEY, QUICK).pause == str(WAIT)
    assert server.figures()["paused"] and check_health(server.url, KEY, QUICK) == "paused"
    server.note_wait(None)
    assert ask_status(server.url, KEY, QUICK).pause == ""
    assert not server.figures()["paused"] and check_health(server.url, KEY, QUICK) == "serving"


def test_a_server_of_this_machine_tells_that_its_launcher_waits_for_room(tmp_path: Path) -> None:
    with LocalServer(tmp_path, None, 1 << 20, 1) as server:
        server.note_wait(WAIT)
        assert ask_local_status(tmp_path).pause == str(WAIT)
        assert server.figures()["paused"]


def test_a_run_that_was_killed_is_told_apart(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET_NAME))
    with pytest.raises(
        ServerError, match=f"{re.escape(str(tmp_path))}: no run is under way there: its process has ended"
    ):
        ask_local_status(tmp_path)


def test_a_laggard_is_told_at_once(server: NetworkServer) -> None:
    both_in, asked = threading.Barrier(3, timeout=60), threading.Event()

    def work(rank: int) -> None:
        with join(server, rank, 2) as session:
            NumpyWorker(session, small_manifest())
            session.send_progress(report(rank, 0, pushed=2 - rank).progress)
            for call in session._progress_calls.values():
                call.result(60)
            both_in.wait()
            assert asked.wait(60)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    both_in.wait()
    ask_status(server.url, KEY, QUICK)  # the wait begins when the server first looks
    reply = ask_status(server.url, KEY, QUICK)
    asked.set()
    for thread in threads:
        thread.join()
    assert reply.open and not reply.missing
    assert [worker.behind_seconds > 0 for worker in reply.present] == [False, True]


def test_the_error_of_a_run_that_failed_is_told(server: NetworkServer) -> None:
    run = server._runs.run
    run.fail(WorkerLostError("worker 7 ended without leaving"))
    assert describe(run).failure == "worker 7 ended without leaving"


def test_nobody_learns_the_status_without_the_key(server: NetworkServer, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AuthenticationError, match="the job key is not the server's"):
        ask_status(server.url, Credentials(b"another key that is long enough"), QUICK)
    with pytest.raises(AuthenticationError, match="asks for a job key, none was given"):
        ask_status(server.url, Credentials(), QUICK)
    assert server.refused == 2 and "refused status peer=127.0.0.1:" in caplog.text


def test_a_server_that_does_not_know_the_key_is_found_out(
    server: NetworkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gate, "check", lambda *_: b"something else")
    with pytest.raises(AuthenticationError, match="does not know the job key"):
        ask_status(server.url, KEY, QUICK)


def test_a_phase_that_this_version_does_not_know_is_refused(server: NetworkServer) -> None:
    with join(server, 0, 2) as session, pytest.raises(ConfigError, match=r"phase: expected .* found 9"):
        session._servers[0].control.call("Progress", pb.ProgressRequest(phase=9))  # type: ignore[arg-type]


def test_a_run_of_this_machine_is_asked_through_its_folder(tmp_path: Path) -> None:
    with LocalServer(tmp_path, None, 64 << 20, 1) as server:
        with join_locally(server.socket_path, 0, 1) as session:
            NumpyWorker(session, small_manifest()).step()
            session.send_progress(report(0).progress)
            session._control.call("Standing", pb.StandingRequest())  # answered in order, so the report has come
            reply = ask_local_status(tmp_path)
    assert (reply.open, reply.step, reply.attempts, list(reply.missing)) == (True, 1, 1, [])
    assert reply.present[0].progress == report(0).progress and reply.present[0].peer == ""
    assert reply.aggregate == "mean"


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a run folder with a run under way, found none"):
        ask_local_status(tmp_path)


def test_the_status_as_text() -> None:
    behind = report(1, place="train.py line 7, in load")
    behind.behind_seconds, behind.peer = 12.3, "10.0.0.3:4000"
    reply = pb.StatusReply(
        open=True, step=1200, attempts=1203, rolled_back=3, workers=3, present=[report(0, phase="ENDING"), behind],
        missing=[2], pause=str(RoomWait("/data", 0, 0.0)), unwritten=7, since_commit_seconds=38.4, aggregate="median",
    )  # fmt: skip
    assert list(lines_of(reply)) == [
        "step 1,200 of the store, 1,203 attempts, 3 rolled back",
        "last on the disk: step 1,193, 38 s ago",
        "of the workers' gradients, element by element: median",
        str(RoomWait("/data", 0, 0.0)),
        "waits for worker 2 to begin",
        "worker 0: at the end of the step, 1 block pushed in this step (2 s ago); received 7 kB, sent 80 B, 3 packets "
        "sent again, 0 dropped",
        "worker 1 (10.0.0.3:4000): in backward of block h.1, 1 block pushed in this step; its program is at "
        "train.py line 7, in load (2 s ago); received 7 kB, sent 80 B, 3 packets sent again, 0 dropped",
        "step 1,201 waits for worker 1, which has made no progress for 12 s",
    ]
    own = list(lines_of(reply, Counts(1100, 1101, 1)))
    assert own[:2] == ["step 100, 102 attempts, 2 rolled back", "last on the disk: step 93, 38 s ago"]
    assert own[-1].startswith("step 101 waits for worker 1")
    assert list(lines_of(pb.StatusReply(workers=3, failure="worker 1 ended"))) == [
        "step 0", "failed: worker 1 ended", "no worker is here; a run has 3",
    ]  # fmt: skip
    assert list(lines_of(pb.StatusReply(workers=1, present=[pb.WorkerStatus()])))[1:] == [
        "worker 0: has joined, and has told nothing yet"
    ]


def test_the_command_prints_text_or_json_and_fails_with_a_run_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = pb.StatusReply(open=True, step=2, workers=1, present=[report(0), pb.WorkerStatus(rank=1)])
    reply.standby.other = "luwu://10.0.0.2:7070"
    monkeypatch.setattr(asking, "ask_local_status", lambda folder, look: reply)
    (tmp_path / SOCKET_NAME).touch()
    text = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert (text.exit_code, text.stdout.splitlines()) == (0, list(lines_of(reply)))
    found = json.loads(CliRunner().invoke(app, ["status", str(tmp_path), "--json"]).stdout)
    assert found == record_of(reply)
    assert found["step"] == 2 and found["present"][0]["progress"]["phase"] == "backward"
    assert found["present"][1]["progress"] is None
    assert found["present"][0]["progress"]["link"]["packets_again"] == 3
    check_keys("status", found)
    for place, record in [
        ("present[].progress", found["present"][0]["progress"]),
        ("switches[].link", found["present"][0]["progress"]["link"]),
    ]:
        keys = documented()["status"]
        assert {f"{place}.{name}" for name in record} == {key for key in keys if key.startswith(f"{place}.")}
    reply.failure = "worker 1 ended"
    assert CliRunner().invoke(app, ["status", str(tmp_path)]).exit_code == 1


def test_the_steps_of_a_new_run_in_an_old_store_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = pb.StatusReply(open=True, step=3002, attempts=3012, rolled_back=10, workers=1)
    monkeypatch.setattr(asking, "ask_local_status", lambda folder, look: reply)
    store = tmp_path / "elsewhere" / "store"
    store.mkdir(parents=True)
    (tmp_path / "config.toml").write_text(f'[run]\nstores = ["{store}"]\n')
    (tmp_path / "run-id").write_text("it\n")
    (tmp_path / SOCKET_NAME).touch()  # of the launcher's server

    def told() -> str:
        return CliRunner().invoke(app, ["status", str(tmp_path)]).stdout.splitlines()[0]

    assert told() == "step 3,002 of the store, 3,012 attempts, 10 rolled back"
    claim_store(store, Claim(RunRecord("other", "runs/other")), Counts(), imported=False)
    assert told() == "step 3,002 of the store, 3,012 attempts, 10 rolled back"
    claim_store(store, Claim(RunRecord("it", "runs/it"), takes_weights=True), Counts(3000, 3009, 9), imported=False)
    assert told() == "step 2, 3 attempts, 1 rolled back"
    (store / "run.json").write_text("{")
    assert told() == "step 3,002 of the store, 3,012 attempts, 10 rolled back"


def test_a_look_has_blocks_and_figures_of_an_open_store_and_a_status_has_none(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory="64MiB") as session:
        with pytest.raises(ConfigError, match="found none"):
            ask_local_status(tmp_path / "elsewhere")
        before = ask_local_status(tmp_path, look=True)
        assert (before.blocks, list(before.block_names), dict(before.figures)) == (b"", [], {})
        model = luwu.parallelize(torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3))), session)
        optimizer = luwu.AdamW(model, lr=1e-2)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step(wait="durable")
        assert ask_local_status(tmp_path).blocks == b""
        reply = ask_local_status(tmp_path, look=True)
        assert {BlockView(view) for view in reply.blocks} <= {BlockView.IN_MEMORY, BlockView.HANDED_OUT}
        assert len(reply.blocks) == len(reply.block_names) > 0
        assert reply.figures["luwu_server_step"] == 1 and reply.figures["luwu_server_pushed_bytes_total"] > 0
