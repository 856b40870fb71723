from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from tests.unit.stand_in import python_of

from luwu.core.exits import Exit
from luwu.errors import ConfigError, LuwuError, StoreSpaceError, WorkerLostError
from luwu.launch.folder import RunFolder, default_folder
from luwu.launch.interrupts import Interrupts
from luwu.launch.job import Job
from luwu.launch.processes import Ended, WorkerProcesses, worker_environment
from luwu.launch.restarts import WORKER_RETURN_SECONDS, Restarts
from luwu.launch.settings import Settings, build_settings
from luwu.launch.words import checked_report, parse_report, typed_error


@pytest.fixture
def start_workers(tmp_path, monkeypatch):
    """Starts workers that run a piece of Python instead of a job."""
    started = []

    def start(code, workers=2):
        python = python_of(tmp_path, code)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", python)
            started.append(WorkerProcesses(RunFolder(tmp_path), workers))
        return started[-1]

    yield start
    for workers in started:
        workers.kill()


def test_workers_that_end_well(start_workers):
    workers = start_workers("assert os.environ['WORLD_SIZE'] == '2' and int(os.environ['OMP_NUM_THREADS']) >= 1")
    workers.wait(90)
    assert not workers.running()
    assert not workers.failed()


def test_workers_share_the_processors_unless_the_user_says_how(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    processors = len(os.sched_getaffinity(0))
    environment = worker_environment(2)
    assert environment["WORLD_SIZE"] == "2"
    assert environment["OMP_NUM_THREADS"] == str(max(1, processors // 2))
    assert environment["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    environment = worker_environment(1)
    assert (environment["OMP_NUM_THREADS"], environment["OMP_WAIT_POLICY"]) == ("7", "active")


@pytest.mark.parametrize("installed", ["libtcmalloc_minimal.so.4", None])
def test_workers_get_the_allocator_unless_the_user_preloads_one(start_workers, monkeypatch, installed):
    monkeypatch.setattr("luwu.launch.processes.worker_allocator", lambda: installed)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    workers = start_workers(f"assert os.environ.get('LD_PRELOAD') == {installed!r}")
    workers.wait(90)
    assert not workers.failed()
    monkeypatch.setenv("LD_PRELOAD", "")
    workers = start_workers("assert os.environ['LD_PRELOAD'] == ''")
    workers.wait(90)
    assert not workers.failed()


def test_a_killed_worker_is_named_with_its_last_words(start_workers):
    workers = start_workers(
        """
        if rank == 1:
            print("about to go", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(3)
        """
    )
    workers.wait(90)
    error = workers.error()
    assert isinstance(error, WorkerLostError)
    assert "worker 1" in str(error) and "killed by SIGKILL" in str(error) and "  about to go" in str(error)


def test_another_worker_is_started_in_the_place_of_a_killed_one(start_workers, tmp_path):
    code = """
        if rank == 1 and not os.path.exists(sys.argv[0] + ".once"):
            open(sys.argv[0] + ".once", "w").close()
            print("about to go", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        print("here")
        """
    workers = start_workers(code)
    workers.wait(90)
    assert [ended.rank for ended in workers.failed()] == [1]
    restarts = Restarts(1)
    assert list(restarts.look(workers, may_start=True)) == []
    restarts.may_begin = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "python"))
        assert list(restarts.look(workers, may_start=False)) == []
        (said,) = restarts.look(workers, may_start=True)
    assert said.startswith("worker 1 was killed by SIGKILL, its log is ") and said.endswith("(restart 1 of 1)")
    workers.wait(90)
    assert not workers.running() and not workers.failed()
    assert (tmp_path / "worker-1.1.log").read_text() == "about to go\n"
    assert (tmp_path / "worker-1.log").read_text() == "here\n"


def test_a_worker_whose_time_is_over_is_killed(start_workers):
    workers = start_workers("time.sleep(60)")
    restarts = Restarts(0)
    restarts.note_overdue(1, "worker 1 has made no progress for 30 s")
    assert list(restarts.look(workers, may_start=True)) == ["worker 1 has made no progress for 30 s; it is killed"]
    while not workers.failed():
        workers.wait(0.1)
    assert [ended.rank for ended in workers.failed()] == [1]
    workers.kill()


def test_workers_are_started_again_as_often_as_the_run_allows_it(start_workers):
    workers = start_workers("os.kill(os.getpid(), signal.SIGKILL)")
    workers.wait(90)
    restarts = Restarts(0)
    restarts.may_begin = True
    assert list(restarts.look(workers, may_start=True)) == []
    assert "was killed by SIGKILL; the last lines" in str(restarts.error(workers))
    assert restarts.patience(5.0)[:2] == (0.0, 5.0)


def test_the_last_restart_is_said_to_be_used_and_no_server_waits_then(start_workers):
    workers = start_workers("os.kill(os.getpid(), signal.SIGKILL)")
    restarts = Restarts(2)
    restarts.may_begin = True
    patience = restarts.patience(0.0)
    assert patience.return_seconds == WORKER_RETURN_SECONDS and patience.another_comes()
    while not restarts.gives_up(workers, may_start=True):
        list(restarts.look(workers, may_start=True))
        workers.wait(0.1)
    words = "it was killed by SIGKILL, and no restart is left of 2 (--restarts allows more); the last lines of"
    assert words in str(restarts.error(workers)) and not patience.another_comes()


def test_an_unexpected_error_shows_its_traceback(start_workers):
    workers = start_workers("raise ValueError('odd') if rank == 0 else SystemExit(3)")
    workers.wait(90)
    assert "worker 0" in str(workers.error())
    assert "exit code 1" in str(workers.error())
    assert "ValueError: odd" in str(workers.error())


def test_a_typed_error_arrives_as_it_was_raised(start_workers):
    workers = start_workers(
        """
        sys.stderr.write('noise\\nluwu error {"type": "StoreSpaceError", "message": "full: \\\\n more"}\\nafter\\n')
        sys.exit(1 if rank == 0 else 3)
        """
    )
    workers.wait(90)
    error = workers.error()
    assert type(error) is StoreSpaceError
    assert str(error) == "full: \n more"


def test_nobody_is_left_behind(start_workers):
    workers = start_workers("time.sleep(60)")
    assert workers.running()
    workers.kill()
    assert not workers.running()
    assert workers.failed()


def test_only_rank_0_is_asked_to_stop(start_workers):
    workers = start_workers(
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("ready", flush=True)
        if rank == 0:
            time.sleep(60)
        """
    )
    while "ready" not in (workers._folder.log_path(0).read_text()):
        pass
    workers.ask_to_stop()
    workers.wait(90)
    assert not workers.failed()


def test_the_server_going_first_is_nobodys_fault(start_workers):
    words = '{"type": "ServerError", "message": "gone"}'
    workers = start_workers(f"sys.stderr.write('luwu error {words}'); sys.exit({Exit.SERVER_LOST})")
    workers.wait(90)
    assert str(workers.error()) == "gone"


@pytest.mark.parametrize("log", ["", "luwu", "text luwu error {}", "Traceback\nValueError: x"])
def test_logs_without_a_typed_error(log):
    assert typed_error(log) is None


def test_an_error_of_an_unknown_kind_is_still_an_error():
    assert type(typed_error('luwu error {"type": "annotations", "message": "x"}')) is LuwuError


def test_a_job_comes_back(tmp_path):
    job = Job(
        settings=build_settings({"run": {"stores": [tmp_path], "memory": "1GiB"}}),
        folder=str(tmp_path),
        socket_path="s",
        launcher_pid=7,
    )
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job


def test_the_run_folder_keeps_its_settings(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.saved_settings() is None
    folder.save_settings(Settings())
    assert build_settings(folder.saved_settings() or {}) == Settings()


def test_an_id_that_cannot_be_read_is_not_taken_for_a_missing_one(tmp_path):
    RunFolder(tmp_path).id_path.mkdir()
    with pytest.raises(ConfigError, match=r"run-id: expected the run's id, found Is a directory; .* remove it"):
        RunFolder(tmp_path).saved_id()
    file = tmp_path / "file"
    file.touch()
    assert RunFolder(file).saved_id() is None


def test_an_id_that_is_not_text_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.saved_id() is None
    folder.save_id("a1b2")
    assert folder.saved_id() == "a1b2"
    folder.id_path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"run-id: expected the run's id in UTF-8, found .*; remove the file"):
        folder.saved_id()


@pytest.mark.parametrize(("data", "name"), [(None, "python-stdlib"), ("/a/poems.txt", "poems"), ("/", "text")])
def test_runs_are_named_after_their_data(data, name):
    assert str(default_folder(data)) == f"runs/{name}"


def test_interrupts_are_counted_and_given_back():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.count == 2
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (lambda job: job.update(launcher_pid="x"), "launcher_pid: Input should be a valid integer"),
        (lambda job: job.update(launcher_pid=10**30), "launcher_pid: "),
        (lambda job: bool(job.pop("folder")), "folder: Field required"),
        (lambda job: job["settings"]["run"].update(workers=[]), r"settings\.run\.workers: "),
        (lambda job: job.update(server={"url": 5}), r"server\.url: "),
        (lambda job: job.update(server={"url": "a", "connect_seconds": float("inf")}), r"server\.connect_seconds: "),
        (lambda job: job.update(folder="a\0b"), "expected a path without a zero byte"),
        (lambda job: "[" * 5000, "the file: "),
        (lambda job: b'{"folder": "\\ud800"}', "the file: "),
        (lambda job: b"\xff", "the file: "),
        (lambda job: "9" * 5000, "the file: "),
        (lambda job: None, "cannot be read"),
    ],
)
def test_a_damaged_job_is_refused_by_file_and_field(tmp_path, damage, field):
    path = tmp_path / "job.json"
    Job(settings=build_settings({}), folder=str(tmp_path), socket_path="s", launcher_pid=7).write(path)
    document = json.loads(path.read_text())
    text = damage(document)
    if isinstance(text, bytes | str):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    elif field == "cannot be read":
        path.unlink()
    else:
        path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=rf"job\.json: {field}.*; start luwu train again"):
        Job.read(path)


def test_a_worker_says_that_its_job_is_damaged(tmp_path):
    (tmp_path / "job.json").write_text("{")
    workers = WorkerProcesses(RunFolder(tmp_path), 1)
    try:
        workers.wait(90)
        assert workers.failed() == [Ended(0, Exit.FAILED)]
        error = workers.error()
    finally:
        workers.kill()
    assert type(error) is ConfigError and "job.json: the file: " in str(error)


@pytest.mark.parametrize(
    "line",
    ["", "{}", "[]", "5", '{"type": 5, "message": "x"}', '{"type": "x"}', '{"message": null, "type": "x"}', "9" * 5000,
     "[" * 5000, '{"type": "LuwuError", "message": ["x"]}'],
)  # fmt: skip
def test_a_line_that_only_begins_as_an_error_is_passed_over(line):
    above = 'luwu error {"type": "StoreError", "message": "why \\ud800"}'
    assert typed_error(f"luwu error {line}") is None
    error = typed_error(f"{above}\nluwu error {line}")
    assert type(error).__name__ == "StoreError" and str(error) == r"why \ud800"


STEP = {
    "kind": "step", "attempt": 1, "step": 1, "committed": True, "loss": float("nan"), "sequences": 2, "tokens": 3,
    "lr": 0.1, "grad_norm": None, "began": 1.5, "ended": 2, "waited_seconds": 0.0, "busy_seconds": 0.0,
    "bytes_pulled": 1, "bytes_pushed": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[" * 5000, "damaged.*thousands deep"),
        ('{"text": "x"}', "damaged.*none named kind"),
        ('{"kind": ["step"]}', "a kind that is no text"),
        ('{"kind": "other"}', "'other': expected one of say, stage"),
        ('{"kind": "say"}', "'say': expected text, found none named text"),
        ('{"kind": "say", "text": 5}', "text 5, which is no text"),
        ('{"kind": "room", "wait": {"folder": "x"}}', "wait .* which is no pause"),
        ('{"kind": "room", "wait": {"folder": "x", "needed_bytes": -1, "until": 1}}', r"wait\.needed_bytes -1"),
        (json.dumps(STEP | {"committed": 1}), "committed 1, which is neither"),
        (json.dumps(STEP | {"tokens": 10**30}), "tokens 10+, which is no whole number"),
        (json.dumps(STEP | {"lr": 10**40}), "lr .* which is no number"),
        (json.dumps(STEP | {"validation": [1.5]}), "validation .* which is no pair"),
    ],
)
def test_a_damaged_report_is_refused_by_worker_and_field(line, said):
    with pytest.raises(WorkerLostError, match=rf"worker 3: report of the kind .*{said}.*; run luwu train again"):
        checked_report(3, parse_report(line))


def test_a_report_comes_through_with_text_that_can_be_shown():
    whole = STEP | {"validation": [1.5, 2], "loss_scale": 2.0}
    assert repr(checked_report(0, parse_report(json.dumps(whole)))) == repr(whole)
    said = checked_report(0, parse_report(json.dumps({"kind": "say", "text": "\ud800"})))
    assert said["text"] == r"\ud800"


def test_a_worker_that_is_killed_after_it_has_left_is_done(start_workers):
    workers = start_workers(
        """
        if rank == 1:
            os.write(int(os.environ["LUWU_REPORT_DESCRIPTOR"]), b'{"kind": "left"}\\n')
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    workers.wait(90)
    assert not workers.running() and not workers.failed()


def test_a_log_that_was_removed_changes_nothing(start_workers, tmp_path):
    workers = start_workers("os.kill(os.getpid(), signal.SIGKILL)")
    workers.wait(90)
    for rank in (0, 1):
        (tmp_path / f"worker-{rank}.log").unlink()
    assert "killed by SIGKILL" in str(workers.error()) and "(empty)" in str(workers.error())
    restarts = Restarts(1)
    restarts.may_begin = True
    said = next(restarts.look(workers, may_start=True))
    assert said.endswith("was killed by SIGKILL; starting another in its place (restart 1 of 1)")
