"""Every wait that is longer than two seconds says what it waits for, and until when."""

from __future__ import annotations

import logging
import re
import threading
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import grpc
import pytest
import torch
from tests.unit.fake_core import FakeCore
from tests.unit.fake_session import FakeSession
from tests.unit.network_serving import KEY, QUICK, hang_on, join, make_switch, train

from luwu.control import local_client, waiting
from luwu.control.address import HostPort
from luwu.control.client import ControlClient
from luwu.control.health import check_health
from luwu.data.preparation import prepare
from luwu.errors import ServerError
from luwu.launch import local as launcher
from luwu.launch.processes import Ended
from luwu.launch.reports import WarningRelay
from luwu.launch.restarts import Restarts
from luwu.probe import link
from luwu.probe.link import measure_link
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings
from luwu.server.status import Status
from luwu.server.topology import star
from luwu.session import local
from luwu.session.remote import RemoteSession
from luwu.switch.service import SwitchService
from luwu.switch.settings import SwitchSettings
from luwu.worker.parallelize import parallelize

NOBODY = "luwu://127.0.0.1:1"
SOON = QUICK.model_copy(update={"connect_seconds": 0.5, "retry_seconds": 0.01})
CLOCK = r"\d\d:\d\d:\d\d"


@pytest.fixture(autouse=True)
def impatient(monkeypatch, caplog):
    """Log every wait without patience, and keep the log."""
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    caplog.set_level(logging.INFO, "luwu")


@pytest.fixture
def at_once(monkeypatch):
    """Log a wait before it begins: a timer's thread may come late on a busy machine, after a short wait."""

    class Timer(threading.Timer):
        def start(self):
            self.function(*self.args)

    monkeypatch.setattr(waiting, "threading", SimpleNamespace(Timer=Timer))


def test_a_long_wait_speaks_and_a_short_one_does_not(monkeypatch, caplog):
    said = threading.Event()
    log = logging.getLogger("luwu.test")
    monkeypatch.setattr(log, "warning", lambda *words: (log.log(logging.WARNING, *words), said.set()))
    with waiting.saying(log, "nobody", 60):
        assert said.wait(60)
    assert re.fullmatch(rf"waiting for nobody until {CLOCK} \(60 s\)", caplog.messages[0])
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 3600.0)
    before = threading.active_count()
    with waiting.saying(log, "nobody", None):
        pass
    assert len(caplog.messages) == 1 and threading.active_count() <= before + 1


def test_who_writes_first_values_says_that_it_waits_until_they_are_durable(at_once, caplog):
    parallelize(torch.nn.Linear(2, 2), FakeSession(), blocks=[])
    assert "waiting for the server to make the first values durable" in caplog.messages


def test_who_connects_says_whom_it_waits_for(at_once, caplog):
    with pytest.raises(ServerError, match="no server answered"):
        RemoteSession(NOBODY, 0, 1, KEY, SOON)
    assert re.search(rf"waiting for a server at {NOBODY}.* until {CLOCK} \(0\.5 s\)", caplog.text)


def test_who_joins_a_socket_says_so(at_once, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(local_client, "CONNECT_SECONDS", 0.2)
    with pytest.raises(ServerError, match="no server listens"):
        local.join(tmp_path / "socket", 0, 1)
    assert re.search(rf"waiting for a server at {tmp_path}/socket until {CLOCK} \(0\.2 s\)", caplog.text)


def test_who_measures_a_link_says_so(at_once, monkeypatch, caplog):
    monkeypatch.setattr(link, "_answer_seconds", lambda other: 0.0)
    monkeypatch.setattr(link, "_rate", lambda *arguments: 1.0)
    measure_link(HostPort("10.0.0.9", 7090), 1.0)
    assert re.search(rf"waiting for luwu link at 10\.0\.0\.9:7090.* until {CLOCK} \(10 s\)", caplog.text)


def test_a_switch_that_never_met_its_server_has_not_lost_it(caplog):
    settings = SwitchSettings(server=NOBODY, name="a", listen="127.0.0.1:0")
    with SwitchService(settings, KEY, SOON.model_copy(update={"connect_seconds": 60.0})):
        pass  # as at SIGTERM
    assert "lost" not in caplog.text and "no server=" not in caplog.text


def test_a_switch_whose_server_does_not_answer_says_that(monkeypatch, caplog):
    said = threading.Event()
    log = logging.getLogger("luwu.switch.service")
    warning = log.warning
    monkeypatch.setattr(log, "warning", lambda *words: (warning(*words), said.set()))
    settings = SwitchSettings(server=NOBODY, name="a", listen="127.0.0.1:0")
    with SwitchService(settings, KEY, SOON):
        assert said.wait(60)
    assert f"no server={NOBODY} why=no server answered" in caplog.text and "lost" not in caplog.text


def run_that(**words: object) -> SimpleNamespace:
    return SimpleNamespace(**({"job": 1, "joined": {0}, "missing": [1], "begun": False, "opened": False} | words))


def nobody():
    return ControlClient(NOBODY, KEY, QUICK.model_copy(update={"close_seconds": 0.01}), print, print)


def a_session_over_the_network(tmp_path, monkeypatch):
    wanted = ServerSettings(stores=(tmp_path / "store",), workers=1, listen="127.0.0.1:0", switches=1)
    with NetworkServer(wanted, KEY, QUICK, start_core=FakeCore, plan=star) as server:
        switch = make_switch()
        server._runs.join_switch(switch)
        hang_on(server, monkeypatch, switch.name)
        with join(server) as session:
            train(session, 1)
            session.snapshot()
            server._runs._end(switch)


def a_session_on_one_host(tmp_path, monkeypatch):
    with local.open(tmp_path, memory="64MiB", rank=0, workers=1) as session:
        train(session, 1)
        session.snapshot()


def a_call_that_is_not_answered_at_once(tmp_path, monkeypatch):
    call = Mock(result=Mock(side_effect=[grpc.FutureTimeoutError(), "an answer"]), time_remaining=lambda: 59.9)
    assert nobody().finish(call) == "an answer"


def a_server_that_ends_without_a_word(tmp_path, monkeypatch):
    client, silent = nobody(), threading.Event()
    client._thread = threading.Thread(target=silent.wait)
    client._thread.start()
    client._hear_why()
    silent.set()
    client._thread.join()


def a_health_check(tmp_path, monkeypatch):
    with pytest.raises(ServerError):
        check_health(NOBODY, KEY)


def a_corpus(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("so it was " * 100)
    prepare(tmp_path / "text.txt", tmp_path)


def a_launcher_whose_worker_ends(tmp_path, monkeypatch):
    running = iter([True, True, False, False])
    workers = SimpleNamespace(
        running=lambda: next(running),
        failed=lambda: [Ended(1, 1)],
        kill=lambda: None,
        error=lambda hint: ServerError("it ended"),
    )
    monkeypatch.setattr(launcher, "WorkerProcesses", lambda *words: workers)
    monkeypatch.setattr(launcher, "PATIENCE_SECONDS", 0.0)
    show = logging.getLogger("luwu.test").warning
    run = Mock(
        spec=launcher.LocalRun,
        _folder=None,
        _settings=Mock(),
        _room=None,
        _job=Mock(),
        _restarts=Restarts(0),
        _reports=Mock(),
        _machines=Mock(failure=None, unfinished=False, losses=0, vacant=False),
        _losses=0,
        _asked_to_stop=False,
        _listening=None,
        _stages=SimpleNamespace(show=show),
    )
    run._fail = partial(launcher.LocalRun._fail, run)
    run._goes_on = partial(launcher.LocalRun._goes_on, run)
    with pytest.raises(ServerError, match="it ended"):
        launcher.LocalRun._supervise(run, SimpleNamespace(count=0))


@pytest.mark.parametrize(("vacant", "waits"), [(False, True), (True, False)])
def test_a_run_that_waits_for_a_lost_machine_does_not_wait_for_a_commit_to_stop(vacant: bool, waits: bool) -> None:
    run = Mock(
        spec=launcher.LocalRun, _settings=Mock(ranks_here=[0]), taken=Mock(training=True), _paused=False,
        _machines=Mock(vacant=vacant),
    )  # fmt: skip
    assert launcher.LocalRun._can_commit(run) is waits


AT = r"luwu://127\.0\.0\.1:\d+"


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (
            a_session_over_the_network,
            [
                rf"waiting for a server at {AT}, which does not answer yet, until {CLOCK} \(30 s\)",
                rf"waiting for the server at {AT}, which is not ready for another run yet, until {CLOCK} \(65 s\)",
                rf"waiting for the server at {AT} to let this participant watch its run until {CLOCK} \(60 s\)",
                r"waiting for the server to open its store, and for the other workers and the switches of the run, "
                rf"until {CLOCK} \(90 s\)",
                rf"waiting for the server at {AT} to send this worker its place in the run until {CLOCK} \(60 s\)",
                rf"waiting for the data connection to {AT} until {CLOCK} \(30 s\)",
                "waiting for the servers to take a snapshot",
                rf"waiting job=\w+ for=switch a to be started again until {CLOCK} \(60 s\)",
                rf"waiting for the connection to the server at {AT} to end until {CLOCK} \(20 s\)",
            ],
        ),
        (
            a_session_on_one_host,
            [
                "waiting for the server to open the store",
                "waiting for the server to take a snapshot",
                rf"waiting for the other workers to leave until {CLOCK} \(60 s\)",
            ],
        ),
        (
            a_call_that_is_not_answered_at_once,
            [rf"waiting for the server at {NOBODY} to answer until {CLOCK} \(60 s\)"],
        ),
        (
            a_server_that_ends_without_a_word,
            [rf"waiting for the reason why the server at {NOBODY} ended until {CLOCK} \(0\.01 s\)"],
        ),
        (a_health_check, [rf"waiting for {NOBODY} to answer a health check until {CLOCK} \(5 s\)"]),
        (a_corpus, ["waiting for another process, which prepares the data in .*"]),
        (
            a_launcher_whose_worker_ends,
            [rf"a worker has ended; waiting for the others until {CLOCK} \(15 s\)"],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_wait_says_what_it_waits_for_and_until_when(at_once, monkeypatch, caplog, tmp_path, happens, said):
    happens(tmp_path, monkeypatch)
    unsaid = [text for text in said if not any(re.fullmatch(text, message) for message in caplog.messages)]
    assert not unsaid, f"of what was said: {caplog.text}"


def test_a_call_that_waits_for_other_workers_is_left_to_its_caller(at_once, caplog):
    call = Mock(result=Mock(side_effect=[grpc.FutureTimeoutError(), "an answer"]), time_remaining=lambda: None)
    assert nobody().finish(call) == "an answer"
    assert not caplog.messages


def test_a_server_says_soon_and_then_now_and_then_whom_it_waits_for(caplog):
    status = Status(60.0, 600.0)
    for now in (100.0, 101.9, 102.1, 103.0, 163.0):
        status.look(run_that(stats=dict), now, missing_switches=2)  # type: ignore[arg-type]
    assert len(caplog.messages) == 2
    for message, left in zip(caplog.messages, (598, 537), strict=True):
        assert re.fullmatch(rf"waiting job=1 for=worker 1,2 switches until {CLOCK} \({left} s\)", message)


def test_a_server_without_anybody_or_with_all_waits_for_nobody(caplog):
    status = Status(60.0, 600.0)
    for now in (100.0, 103.0, 161.0):
        status.look(run_that(joined=set(), stats=dict), now, missing_switches=2)  # type: ignore[arg-type]
        status.look(run_that(begun=True, missing=[], stats=dict), now)  # type: ignore[arg-type]
    assert not caplog.messages


def test_a_status_gives_a_rate_only_between_two_looks(caplog):
    caplog.set_level(logging.INFO)
    status = Status(60.0, 600.0)
    stats = {"attempts": 45, "rolled_back": 1}
    for now, step in ((0.0, 30), (61.0, 40), (121.0, 70)):
        run = run_that(begun=True, opened=True, missing=[], step=step, stats=lambda: stats)
        status.look(run, now)  # type: ignore[arg-type]
    assert caplog.messages == [
        "committed job=1 step=40 attempts=45 rolled_back=1",
        "committed job=1 step=70 attempts=45 rolled_back=1 steps_per_second=0.5",
    ]


def test_a_worker_tells_the_launcher_of_its_waits():
    told: list[object] = []
    log = logging.Logger("a worker's")
    log.addHandler(WarningRelay(told.append))
    log.info("nothing")
    log.warning("waiting for %s", "a server")
    assert told == [{"kind": "say", "text": "waiting for a server"}]
