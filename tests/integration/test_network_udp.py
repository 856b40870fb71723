"""Training over UDP: a server, its switches and its workers over loopback, against the same over shared memory."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.integration.fabric_worker import GROUP, NumpyWorker, small_manifest
from tests.integration.network import KEY, make_authority, make_certificate
from tests.integration.test_network import equal, luwu_command
from tests.integration.udp import (
    CREDENTIALS,
    QUICK,
    SwitchProcess,
    in_threads,
    local_server,
    remote,
    steps,
    train,
    udp_server,
    udp_switch,
    udp_tree,
)

import luwu
from harness.network.namespaces import wait_until
from harness.small_models import Block, Tiny, loss_of
from harness.stored import contents
from luwu.control import control_pb2 as pb
from luwu.control.credentials import Credentials
from luwu.control.health import check_health
from luwu.control.status import ask_status
from luwu.control.timeouts import Timeouts
from luwu.errors import ConfigError, LuwuError, ServerError, WorkerLostError
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings
from luwu.session.remote import connect
from luwu.session.session import Session

ONE = (("top", ""),)
THREE = (("top", ""), ("left", "top"), ("right", "top"))


def train_locally(run: Path, workers: int, count: int, *, coarse: bool = False) -> Path:
    with local_server(run, workers) as joined:
        train(joined, workers, steps(count), coarse=coarse)
    return run / "store"


def train_over_udp(store: Path, workers: int, count: int, *switches: tuple[str, str], coarse: bool = False, **settings):
    with udp_tree(store, workers, switches, **settings) as url:
        train(remote(url, workers), workers, steps(count), coarse=coarse)
    return store


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_same_bits_as_on_one_host_where_fixed_point_is_exact(tmp_path: Path, workers: int) -> None:
    local = train_locally(tmp_path / "local", workers, 4, coarse=True)
    assert equal(local, train_over_udp(tmp_path / "udp", workers, 4, coarse=True))


def test_the_same_bits_as_on_one_host_as_floats(tmp_path: Path) -> None:
    assert equal(train_locally(tmp_path / "local", 4, 3), train_over_udp(tmp_path / "udp", 4, 3, *ONE, form="float32"))


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_workers_and_switches_tell_the_server_what_their_links_carry(tmp_path: Path, transport: str) -> None:
    udp = transport == "udp"
    telling = QUICK.model_copy(update={"progress_seconds": 0.01})
    with udp_server(tmp_path / "store", 1, transport=transport, switches=int(udp)) as server, ExitStack() as switches:
        if udp:
            switches.enter_context(udp_switch(server.url, "a", telling))
        with remote(server.url, 1)(0) as session:
            worker = NumpyWorker(session, small_manifest())
            assert worker.step()
            link = session.link_counts()
            assert link is not None and link.transport == transport
            # A step of this worker pulls all parameters, and pushes all gradients; over UDP with heads.
            assert link.received_bytes >= session.endpoint.stats()["bytes_pulled"] > 0 or udp
            assert min(link.received_bytes, link.sent_bytes) > 0 and (link.packets_sent > 0) == udp
            session.send_progress(pb.ProgressRequest(link=link))

            def told() -> bool:
                reply = ask_status(server.url, CREDENTIALS, QUICK)
                found = [each.link.sent_bytes > 0 and each.link.packets_sent > 0 for each in reply.switches]
                return reply.present[0].progress.link == link and found == [True] * int(udp)

            wait_until(told, "worker and switch to tell the server")


@pytest.mark.parametrize(("form", "bits"), [("int32", 32), ("int16", 16)])
def test_a_gradient_is_off_by_the_documented_error_at_most(tmp_path: Path, form: str, bits: int) -> None:
    workers = 4
    store = train_over_udp(tmp_path / "udp", workers, 1, form=form)
    manifest = small_manifest()
    for number, block in enumerate(manifest.blocks):
        values = np.sin(np.arange(block.elements, dtype=np.float32) + number)
        gradients = np.array([np.cos(values * 3 + rank) for rank in range(workers)])
        largest = np.array(
            [
                np.abs(gradients[:, first : first + 32]).max()
                for first in range(0, block.elements, 32)
                for _ in range(min(32, block.elements - first))
            ]
        )
        mean = gradients.astype(np.float64).mean(axis=0)
        first_moment = contents(store)[3 * number + 1].astype(np.float64)
        rounding = 2.0**-22 * largest  # of fp32, in the sum and in the update
        bound = 0.1 * (2.0 ** -(bits - 1 - 2) * largest + rounding)
        assert np.all(np.abs(first_moment - 0.1 * mean) <= bound)


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_workers_that_keep_other_blocks_on_their_devices_are_refused_over_udp(tmp_path: Path, transport: str) -> None:
    keeps = (("h.0", "h.1"), ("h.1",))

    def error_of(rank: int) -> LuwuError | None:
        try:
            with remote(server.url, 2)(rank) as session:
                assert NumpyWorker(session, small_manifest(), kept=keeps[rank]).step()
        except LuwuError as error:
            return error
        return None

    with udp_server(tmp_path / "store", 2, transport=transport) as server:
        errors = in_threads(2, error_of)
    if transport == "tcp":
        assert errors == [None, None]
        return
    assert {type(error) for error in errors} == {ConfigError}
    assert all("some keep h.0 there and others do not" in str(error) for error in errors)


def test_certificates_and_udp_go_together_only_where_both_sides_agree_to_plain_data(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "ours")
    served, ours = (make_certificate(tmp_path, name, authority) for name in ("server", "worker"))
    settings = ServerSettings(stores=(tmp_path / "store",), workers=1, transport="udp", listen="127.0.0.1:0")
    with pytest.raises(
        ConfigError, match="travel unencrypted: use --transport tcp, or agree to that with --plain-data"
    ):
        NetworkServer(settings, Credentials(tls=served), QUICK)
    agreed = settings.model_copy(update={"plain_data": True})
    with NetworkServer(agreed, Credentials(tls=served), QUICK) as server:
        with pytest.raises(
            ConfigError, match=r"travel unencrypted; .* with plain_data=True, --plain-data or LUWU_PLAIN"
        ):
            luwu.connect(server.url, rank=0, workers=1, tls=ours, timeouts=QUICK)
        with luwu.connect(server.url, rank=0, workers=1, tls=ours, timeouts=QUICK, plain_data=True) as session:
            steps(1)(NumpyWorker(session, small_manifest()))


def test_every_tree_gives_the_same_bits(tmp_path: Path) -> None:
    own = train_over_udp(tmp_path / "own", 4, 3)
    for name, switches in (("one", ONE), ("three", THREE)):
        assert equal(own, train_over_udp(tmp_path / name, 4, 3, *switches))
    with udp_tree(tmp_path / "racks", 4, (("rack1", ""), ("rack2", "rack1"))) as url:
        train(lambda rank: remote(url, 4, switch=f"rack{rank // 2 + 1}")(rank), 4, steps(3))
    assert equal(own, tmp_path / "racks")


def test_one_set_of_workers_after_another(tmp_path: Path) -> None:
    whole = train_over_udp(tmp_path / "whole", 2, 6, coarse=True)
    with udp_tree(tmp_path / "parts", 2, ONE) as url:
        for _ in range(3):
            train(remote(url, 2), 2, steps(2), coarse=True)
    assert equal(whole, tmp_path / "parts")


def start_again(tmp_path: Path, first_clock: tuple[str, ...] = ()) -> bool:
    """Kill and start a run's switch again in the middle; tell whether the run has the undisturbed one's bits."""
    whole = train_over_udp(tmp_path / "whole", 2, 30, *ONE)
    reached, restarted = threading.Barrier(3, timeout=60), threading.Event()

    def work(worker: NumpyWorker) -> None:
        steps(3)(worker)
        reached.wait()
        steps(2)(worker)  # the switch goes meanwhile
        while not restarted.is_set() and worker.session.step < 25:
            steps(1)(worker)
        steps(30 - worker.session.step)(worker)

    with udp_server(tmp_path / "store", 2, switches=1) as server:
        with (
            SwitchProcess(tmp_path, server.url, name="top", before=first_clock) as first,
            ThreadPoolExecutor(1) as pool,
        ):
            trained = pool.submit(train, remote(server.url, 2), 2, work)
            reached.wait()
            first.process.kill()
            first.process.wait()  # its ports are free again
            with SwitchProcess(tmp_path, server.url, "--listen", first.address, name="top") as second:
                assert second.address == first.address
                restarted.set()
                trained.result(60)
    return equal(whole, tmp_path / "store")


def test_a_switch_that_is_killed_and_started_again_changes_no_bit(tmp_path: Path) -> None:
    assert start_again(tmp_path)


CLOCK_OF_LATER = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", "1000000")
"""Starts a command whose clock is eleven days ahead of this host's."""


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*CLOCK_OF_LATER, "true"], capture_output=True).returncode != 0,
    reason="needs a time namespace: root, and Linux 5.6 or newer",
)
def test_a_switch_whose_host_was_started_anew_is_heard_at_once(tmp_path: Path) -> None:
    assert start_again(tmp_path, CLOCK_OF_LATER)


def test_a_switch_that_hangs_is_noticed_and_goes_on_when_it_wakes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train_over_udp(tmp_path / "whole", 2, 30, *ONE)
    impatient = Timeouts(**QUICK.model_dump() | {"keepalive_interval_seconds": 1, "keepalive_timeout_seconds": 4})
    reached, stopped = threading.Barrier(3, timeout=60), threading.Event()

    def work(worker: NumpyWorker) -> None:
        steps(3)(worker)
        reached.wait()
        while not stopped.is_set() and worker.session.step < 25:
            steps(1)(worker)
        steps(30 - worker.session.step)(worker)

    with udp_server(tmp_path / "store", 2, impatient, switches=1) as server:
        with SwitchProcess(tmp_path, server.url, name="top") as switch, ThreadPoolExecutor(1) as pool:
            trained = pool.submit(train, remote(server.url, 2), 2, work)
            reached.wait()
            switch.process.send_signal(signal.SIGSTOP)
            stopped.set()
            wait_until(lambda: "lost switch top" in caplog.text, "the server to notice")
            assert not trained.done()
            switch.process.send_signal(signal.SIGCONT)
            trained.result(90)
    assert equal(whole, tmp_path / "store")


def test_a_switch_takes_its_place_again_before_its_end_was_noticed(tmp_path: Path) -> None:
    with udp_server(tmp_path / "store", 1, switches=1) as server:
        with udp_switch(server.url, "top") as first:
            wait_until(lambda: check_health(f"luwu://{first.address}", Credentials()) == "serving", "the first to join")
            with pytest.raises(ConfigError, match="has joined already"), udp_switch(server.url, "top") as second:
                assert second.wait(60)
            process = SwitchProcess(tmp_path, server.url, name="top")
            assert process.process.wait(60) == 2
            assert "has joined already" in process.log.read_text()
            train(remote(server.url, 1), 1, steps(1))
            assert first.stats()


def test_a_switch_with_the_wrong_key_is_sent_away(tmp_path: Path) -> None:
    with udp_server(tmp_path / "store", 1) as server:
        with SwitchProcess(tmp_path, server.url, name="stranger", key=KEY[::-1]) as stranger:
            assert stranger.process.wait(60) == 2
        assert "the job key is not the server's" in stranger.log.read_text()
        assert server.refused == 1
        train(remote(server.url, 1), 1, steps(1))


def test_health_of_a_switch(tmp_path: Path) -> None:
    with udp_server(tmp_path / "store", 1, switches=1) as server:
        with udp_switch(server.url, "top") as switch:
            train(remote(server.url, 1), 1, steps(1))
            url = f"luwu://{switch.address}"
            healthy = luwu_command("health", url)
            assert (healthy.returncode, healthy.stdout) == (0, f"{url} serving\n")
            server.close()
            lonely = luwu_command("health", url)
            assert (lonely.returncode, lonely.stdout) == (1, f"{url} not_serving\n")


@pytest.mark.timeout(20)
def test_a_switch_that_waits_for_a_server_stops_at_once() -> None:
    with udp_switch("luwu://127.0.0.1:1", "lonely", Timeouts(connect_seconds=600)) as switch:
        assert not switch.wait(0)


def give_up_now_and_then(worker: NumpyWorker) -> None:
    """Rank 1 gives up every second attempt, each time after another number of blocks; the others notice at its end."""
    for attempt in range(8):
        if attempt % 2 == 0 and worker.session.rank == 1:
            worker.give_up(attempt // 2)
        else:
            assert worker.step() == (attempt % 2 == 1)


def test_a_step_that_one_worker_gives_up_is_rolled_back_for_all(tmp_path: Path) -> None:
    with local_server(tmp_path / "local", 4) as joined:
        train(joined, 4, give_up_now_and_then, coarse=True)
    with udp_tree(tmp_path / "udp", 4, THREE) as url:
        train(remote(url, 4), 4, give_up_now_and_then, coarse=True)
    assert equal(tmp_path / "local/store", tmp_path / "udp")


def test_a_step_with_a_bad_gradient_is_rolled_back_for_all(tmp_path: Path) -> None:
    def work(worker: NumpyWorker) -> None:
        steps(2)(worker)
        assert not worker.step(spoil=worker.session.rank == 1)
        steps(2)(worker)

    whole = train_over_udp(tmp_path / "whole", 2, 4, coarse=True)
    with udp_tree(tmp_path / "udp", 2) as url:
        train(remote(url, 2), 2, work, coarse=True)
    assert equal(whole, tmp_path / "udp")


def test_one_worker_reads_between_steps(tmp_path: Path) -> None:
    def work(worker: NumpyWorker) -> list[np.ndarray]:
        steps(2)(worker)
        found = [worker.read(number) for number in (2, 0, 2)] if worker.session.rank == 0 else []
        steps(2)(worker)
        return found

    whole = train_over_udp(tmp_path / "whole", 2, 4)
    half = contents(train_over_udp(tmp_path / "half", 2, 2))
    with udp_tree(tmp_path / "udp", 2, ONE) as url:
        read, nothing = train(remote(url, 2), 2, work)
    assert equal(whole, tmp_path / "udp") and not nothing
    for number, values in zip((2, 0, 2), read, strict=True):
        assert np.array_equal(values, half[3 * number].view(np.float32))


def test_the_servers_traffic_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    per_step = {}
    for workers in (1, 4):
        with udp_server(tmp_path / str(workers), workers, switches=1) as server, udp_switch(server.url, "top"):
            meet = threading.Barrier(workers, timeout=60)

            def work(worker: NumpyWorker, server=server, meet=meet) -> tuple[int, int]:
                steps(1)(worker)
                meet.wait()
                before = server.stats()["network"]
                meet.wait()
                steps(5)(worker)
                meet.wait()
                after = server.stats()["network"]
                meet.wait()
                resent = after["resent"] - before["resent"]
                beats = [after[f"heartbeats_{way}"] - before[f"heartbeats_{way}"] for way in ("in", "out")]
                packets = [after[f"packets_{way}"] - before[f"packets_{way}"] for way in ("in", "out")]
                again = after["drops"]["duplicate"] - before["drops"]["duplicate"]
                return packets[0] - beats[0] - again, packets[1] - resent

            per_step[workers] = train(remote(server.url, workers), workers, work)[0]
    sent_up, sent_down = per_step[1]
    assert per_step[4][1] == sent_down
    assert sent_up / 1.5 <= per_step[4][0] <= 1.5 * sent_up  # a switch acknowledges several packets at once, or each


def test_workers_and_switches_that_do_not_run_the_same_blocks_are_named(tmp_path: Path) -> None:
    def work(worker: NumpyWorker) -> None:
        worker.endpoint.begin([GROUP])
        worker.read(worker.session.rank)

    with udp_tree(tmp_path / "udp", 2) as url:
        with pytest.raises(LuwuError, match="workers pulled or pushed different blocks"):
            train(remote(url, 2), 2, work)


def test_workers_that_differ_do_not_leave_the_others_waiting(tmp_path: Path) -> None:
    begun, told = threading.Event(), threading.Event()

    def work(worker: NumpyWorker) -> None:
        if worker.session.rank == 0:
            worker.endpoint.begin([GROUP])
            begun.set()
            with pytest.raises(LuwuError, match="other hyper-parameters"):
                worker.read(1)
            told.set()
        else:
            assert begun.wait(60)
            with pytest.raises(LuwuError, match="other hyper-parameters"):
                worker.endpoint.begin([(1e-3, *GROUP[1:])])
            assert told.wait(60)

    with udp_tree(tmp_path / "udp", 2) as url:
        train(remote(url, 2), 2, work)


def test_a_worker_that_fails_ends_the_run_for_the_others_and_the_next_are_served(tmp_path: Path) -> None:
    def one(rank: int) -> None:
        with remote(url, 2)(rank) as session:
            worker = NumpyWorker(session, small_manifest())
            steps(3)(worker)
            if rank == 1:
                raise KeyError("a fault of this worker's script")
            while True:
                worker.step()

    with udp_tree(tmp_path / "udp", 2, ONE) as url:
        with pytest.raises(WorkerLostError, match="worker 1"):
            in_threads(2, one)
        train(remote(url, 2), 2, steps(2))
    assert equal(tmp_path / "udp", train_over_udp(tmp_path / "whole", 2, 5))


def test_a_server_that_is_closed_tells_its_workers_and_the_switch_waits_for_the_next(tmp_path: Path) -> None:
    stopped = threading.Barrier(3, timeout=60)

    def work(worker: NumpyWorker) -> None:
        steps(2)(worker)
        stopped.wait()
        while True:
            worker.step()

    server = udp_server(tmp_path / "udp", 2, switches=1)
    with udp_switch(server.url, "top"):
        with ThreadPoolExecutor(1) as pool:
            trained = pool.submit(train, remote(server.url, 2), 2, work)
            stopped.wait()
            server.close()
            with pytest.raises(ServerError, match=r"the server at luwu://127\.0\.0\.1:\d+ was stopped"):
                trained.result(60)
        with udp_server(tmp_path / "udp", 2, switches=1, listen=server.url.removeprefix("luwu://")) as again:
            train(remote(again.url, 2), 2, steps(1))


def fit(session: Session, model: Tiny, *, disturbed: bool) -> list[float]:
    """Three steps of a torch model. Disturbed, rank 1 gives the first attempt up and rank 0 looks at the model."""
    luwu.parallelize(model, session, blocks=[Block])
    optimizer = luwu.AdamW(model, lr=1e-2)
    losses: list[float] = []

    def attempt() -> bool:
        loss = loss_of(model, 7 * session.step + session.rank)
        if disturbed and session.rank == 0:
            look()
        loss.backward()
        before = session.step
        optimizer.step()
        optimizer.zero_grad()
        if session.step > before:
            losses.append(float(loss.detach()))
        return session.step > before

    @torch.no_grad()
    def look() -> None:
        loss_of(model, 5)

    def fail(*_: object) -> None:
        raise KeyError("half-way")

    if disturbed and session.rank == 1:
        hook = model.h[1].register_forward_hook(fail)
        with pytest.raises(KeyError):
            attempt()
        hook.remove()
    elif disturbed:
        assert not attempt()
    while session.step < 3:
        assert attempt()
        if disturbed and session.rank == 0:
            look()
    return losses


def test_a_worker_may_fail_half_way_and_one_may_look_at_the_model_at_any_time(tmp_path: Path) -> None:
    found = []
    for disturbed in (False, True):
        torch.manual_seed(0)
        models = [Tiny(depth=6)]
        models += [copy.deepcopy(models[0]) for _ in range(2)]
        with udp_tree(tmp_path / str(disturbed), 3, ONE) as url:

            def work(rank: int, url=url, models=models, disturbed=disturbed) -> list[float]:
                with remote(url, 3)(rank) as session:
                    return fit(session, models[rank], disturbed=disturbed)

            found.append(in_threads(3, work))
    assert found[0] == found[1]
    assert equal(tmp_path / "False", tmp_path / "True")


def spoil_socket(port: int) -> None:
    """Make the next use of this process's UDP socket with this port fail as that of a broken socket does."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not str(path.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as found:
                if found.type == socket.SOCK_DGRAM and found.getsockname()[1] == port:
                    with open(os.devnull) as nothing:
                        os.dup2(nothing.fileno(), int(path.name))


def test_a_switch_whose_loop_dies_says_why_to_its_server_and_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train_over_udp(tmp_path / "whole", 2, 30, *ONE)
    reached, ended = threading.Barrier(3, timeout=60), threading.Event()

    def work(worker: NumpyWorker) -> None:
        steps(3)(worker)
        reached.wait()
        while not ended.is_set() and worker.session.step < 25:
            steps(1)(worker)
        steps(30 - worker.session.step)(worker)

    with udp_server(tmp_path / "store", 2, switches=1) as server, ThreadPoolExecutor(1) as pool:
        with pytest.raises(ServerError, match=r"the switch cannot go on: .*start it again"):
            with udp_switch(server.url, "top") as switch:
                trained = pool.submit(train, remote(server.url, 2), 2, work)
                reached.wait()
                spoil_socket(switch.port)
                ended.set()
                assert switch.wait(60)
        wait_until(lambda: "lost switch top" in caplog.text, "the server to be told")
        assert "why='failed: " in caplog.text
        assert not trained.done()
        port = switch.port
        switch._native = switch._tracing = None  # gives the port back, as the end of its process does
        with udp_switch(server.url, "top", listen=f"127.0.0.1:{port}"):
            trained.result(60)
    assert equal(whole, tmp_path / "store")


@pytest.mark.parametrize("which", ["the server's own switch", "server", "worker"])
def test_a_loop_that_dies_ends_the_run_for_everybody(tmp_path: Path, which: str) -> None:
    reached = threading.Barrier(3, timeout=60)

    def work(rank: int) -> str:
        with (
            pytest.raises(LuwuError) as raised,
            connect(server.url, rank=rank, workers=2, key=KEY, timeouts=QUICK) as session,
        ):
            worker = NumpyWorker(session, small_manifest())
            steps(2)(worker)
            if rank == 0:
                ports["worker"] = session._servers[0]._udp.port
            reached.wait()
            while True:
                steps(1)(worker)
        return str(raised.value)

    ports: dict[str, int] = {}
    with udp_server(tmp_path / "store", 2) as server, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(in_threads, 2, work)
        reached.wait()
        ports["the server's own switch"] = server._runs._plan._own.port
        with server._runs.run.core() as core:
            ports["server"] = core.udp_port
        spoil_socket(ports[which])
        first, second = ended.result(60)
        assert "cannot receive" in first
        assert ("worker 0" if which == "worker" else "cannot receive") in second
        train(remote(server.url, 2), 2, steps(1))
