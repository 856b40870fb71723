"""Addresses, credentials, timeouts and the generated messages: what the network's two sides agree on."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from luwu.control import control_pb2 as pb
from luwu.control import rpc
from luwu.control.address import HostPort, local_address, parse_host_port, parse_url
from luwu.control.credentials import Credentials, find_credentials, tls_files, worker_request
from luwu.control.exposition import parse_metrics
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.control.wiring import STREAMS, TIMINGS, timings_of
from luwu.core import native
from luwu.errors import AuthenticationError, ConfigError, LuwuError, ServerError, error_named
from luwu.server.gate import Gate
from luwu.watch.serving import bind

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import timeouts_table

ROOT = Path(__file__).parents[2]
KEY = "0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.9:7071", "10.0.0.9", 7071),
        ("node-1.example", "node-1.example", 7070),
        ("[::1]:0", "::1", 0),
        ("[fe80::1%eth0]", "fe80::1%eth0", 7070),
    ],
)
def test_addresses(text, host, port):
    assert parse_host_port(text) == HostPort(host, port)
    assert parse_host_port(str(HostPort(host, port))) == HostPort(host, port)


@pytest.mark.parametrize("host", ["a" * 70, "host." + "b" * 64, "a..b"])
def test_a_name_that_no_host_can_have_is_refused_wherever_it_is_given(host: str) -> None:
    for use in (
        lambda: parse_host_port(f"{host}:7070"),
        lambda: parse_url(f"luwu://{host}:7070"),
        lambda: parse_metrics(f"{host}:9090"),
        lambda: local_address(host),
        lambda: bind(host, 0),
    ):
        with pytest.raises(ConfigError, match="expected a host's name, of 1 to 63 characters between two dots"):
            use()


@pytest.mark.parametrize("text", ["", ":1", "a:b", "a:65536", "::1", "a b:1", "user@host:1", "host:1/path", "[::1"])
def test_what_is_no_address(text):
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_host_port(text)


def test_urls():
    assert parse_url("luwu://10.0.0.9:7070/") == HostPort("10.0.0.9", 7070)
    assert parse_url(HostPort("::1", 5).url) == HostPort("::1", 5)
    with pytest.raises(ConfigError, match="expected an address such as luwu://"):
        parse_url("http://10.0.0.9")
    with pytest.raises(ConfigError, match="port from 1"):
        parse_url("luwu://10.0.0.9:0")


def test_a_key_comes_from_an_argument_a_file_or_the_environment(tmp_path, monkeypatch):
    (tmp_path / "key").write_text(f"{KEY}\n")
    assert find_credentials(KEY).key == find_credentials(key_file=tmp_path / "key").key == KEY.encode()
    assert find_credentials() == Credentials()
    monkeypatch.setenv("LUWU_JOB_KEY_FILE", str(tmp_path / "key"))
    assert find_credentials().key == KEY.encode()
    assert find_credentials("another key of the job").key == b"another key of the job"
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    with pytest.raises(ConfigError, match="found both"):
        find_credentials()


def test_keys_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigError, match=r"at least 16 bytes, found 5.*openssl rand"):
        find_credentials("short")
    with pytest.raises(ConfigError, match=r"no-key: cannot be read"):
        find_credentials(key_file=tmp_path / "no-key")
    assert KEY not in repr(find_credentials(KEY))


def test_plain_data_is_agreed_to_by_an_argument_or_the_environment(monkeypatch):
    assert not find_credentials().plain_data
    assert find_credentials(plain_data=True).plain_data
    monkeypatch.setenv("LUWU_PLAIN_DATA", "1")
    assert find_credentials().plain_data
    assert not find_credentials(plain_data=False).plain_data


def test_tls_takes_three_files(tmp_path, monkeypatch):
    assert tls_files(None, None, None) is None
    with pytest.raises(ConfigError, match="found a alone"):
        tls_files("a", None, None)
    for name in ("CERT", "KEY", "CA"):
        monkeypatch.setenv(f"LUWU_TLS_{name}", str(tmp_path / name))
    assert find_credentials().tls == tls_files(tmp_path / "CERT", tmp_path / "KEY", tmp_path / "CA")


def test_a_proof_is_of_one_side_one_key_and_one_request():
    ours, theirs = Credentials(KEY.encode()), Credentials(b"another key of the job")
    nonces = b"a" * 32, b"b" * 32
    proofs = {
        ours.prove_participant(*nonces, worker_request(0, 2)),
        ours.prove_server(*nonces, worker_request(0, 2)),
        ours.prove_participant(*nonces, worker_request(1, 2)),
        ours.prove_participant(*reversed(nonces), worker_request(0, 2)),
        theirs.prove_participant(*nonces, worker_request(0, 2)),
    }
    assert len(proofs) == 5 and all(len(proof) == 32 for proof in proofs)
    assert Credentials().prove_participant(*nonces, "worker 0 of 2") == b""


def answer(gate, challenge, request="worker 0 of 1", peer="ipv4:10.0.0.2:1234", own=b"n" * 32):
    return gate.check(challenge, gate._credentials.prove_participant(own, challenge, request), request, peer)


def test_a_challenge_is_good_for_one_join_of_one_host_for_a_while():
    own, peer = b"n" * 32, "ipv4:10.0.0.2:1234"
    old = Gate(Credentials(KEY.encode()), challenge_seconds=1e-9)
    with pytest.raises(AuthenticationError, match="too old"):
        answer(old, old.challenge(own, peer))
    gate = Gate(Credentials(KEY.encode()), challenge_seconds=60)
    with pytest.raises(AuthenticationError, match="expected 32 bytes, found 3"):
        gate.challenge(b"abc", peer)
    challenge = gate.challenge(own, peer)
    changed = bytes([challenge[0] ^ 1]) + challenge[1:]
    elsewhere = gate.challenge(own, "ipv4:10.0.0.3:1234")
    other = Gate(Credentials(KEY.encode()), challenge_seconds=60).challenge(own, peer)
    for wrong in (changed, elsewhere, other, challenge + b"x", challenge[:-1], b"n" * 32, b""):
        with pytest.raises(AuthenticationError, match="unknown, used or too old"):
            answer(gate, wrong)
    assert answer(gate, challenge, peer="ipv4:10.0.0.2:4321")  # from another port, as after a reconnection
    with pytest.raises(AuthenticationError, match="unknown, used or too old"):
        answer(gate, challenge)
    assert gate.refused == 8


def test_strangers_who_ask_for_challenges_cost_no_memory_and_push_nobody_out():
    gate = Gate(Credentials(KEY.encode()), challenge_seconds=60)
    challenge = gate.challenge(b"n" * 32, "ipv4:10.0.0.2:1234")
    for _ in range(10_000):
        stranger = gate.challenge(b"s" * 32, "ipv4:10.0.0.2:1234")
    with pytest.raises(AuthenticationError, match="not the server's"):
        gate.check(stranger, b"wrong", "worker 0 of 1", "ipv4:10.0.0.2:1234")
    assert not gate._used
    assert answer(gate, challenge)
    assert len(gate._used) == 1


def test_a_stranger_writes_no_lines_into_the_log(caplog):
    gate = Gate(Credentials(KEY.encode()), challenge_seconds=60)
    with pytest.raises(AuthenticationError):
        gate.check(b"", b"", "switch evil\n2026-01-01 INFO joined worker 0\x1b[2J" + "x" * 10**6, "ipv4:10.0.0.2:1")
    assert len(caplog.records) == 1
    line = caplog.records[0].getMessage()
    assert line.isprintable() and len(line) < 500 and r"evil\n2026" in line


def test_strangers_fill_no_disk_with_the_log(caplog, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    gate = Gate(Credentials(KEY.encode()), challenge_seconds=60)
    for _ in range(1000):
        with pytest.raises(AuthenticationError):
            gate.check(b"", b"", "worker 0 of 1", "ipv4:10.0.0.2:1")
    assert gate.refused == 1000 and len(caplog.records) == 100
    now = 2.5
    for _ in range(3):
        gate.refusals.warning("refused peer=%s why='protocol %d'", "10.0.0.2:1", 3)
    lines = [record.getMessage() for record in caplog.records[100:]]
    assert lines == [f"refused peer=10.0.0.2:1 why='protocol 3'{more}" for more in (" left_out=900", "")]


def test_errors_keep_their_class_and_fit_a_header():
    assert type(rpc.error_from(((rpc.ERROR_METADATA, "StoreSpaceError"),), "full")).__name__ == "StoreSpaceError"
    assert type(rpc.error_from(((rpc.ERROR_METADATA, "annotations"),), "odd")) is ServerError
    assert rpc.error_from((("other", "x"),), "text") is None and rpc.error_from(None, "text") is None
    assert len(rpc.error_text(LuwuError("x" * 10**6))) < 2000
    assert error_named("os") is LuwuError


def test_the_table_of_timeouts_says_what_the_code_does():
    section = timeouts_table.PAGE.read_text().partition(timeouts_table.BEGIN)[2].partition(timeouts_table.END)[0]
    assert section.strip() == timeouts_table.timeouts_table(), "run python tools/timeouts_table.py"


def test_settings_messages_and_the_native_core_have_the_same_timings_of_udp():
    told = [name for name in pb.Network.DESCRIPTOR.fields_by_name if name.endswith("_seconds")]
    assert sorted(TIMINGS) == sorted(told)
    native.NetworkTiming(timings_of(TIMEOUTS))
    for name in TIMINGS:
        with pytest.raises(TypeError, match=f"expected {name}, found none"):
            native.NetworkTiming({other: 1.0 for other in TIMINGS if other != name})
    with pytest.raises(TypeError, match="other names"):
        native.NetworkTiming(timings_of(TIMEOUTS) | {"another_seconds": 1.0})


def test_a_server_sends_its_own_timings_of_udp():
    mine = Timeouts(queueing_seconds=0.5)
    sent = pb.Network(windows=[1] * STREAMS, **timings_of(mine))
    assert timings_of(sent) == timings_of(mine) and sent.queueing_seconds == 0.5


def test_no_other_place_of_the_network_has_a_timeout():
    found = [
        f"{path.name}: {line.strip()}"
        for room in ("control", "server", "switch", "session")
        for path in (ROOT / "src/luwu" / room).glob("*.py")
        if path.name not in ("timeouts.py", "local.py", "local_client.py")  # the last two: of one host
        if "pb2" not in path.name
        for line in path.read_text().splitlines()
        if re.search(r"(timeout|seconds|SECONDS)\w*(: float)? ?= ?(?!0\.0\b)\d", line)
    ]
    assert found == []


def test_a_cut_of_ten_seconds_is_no_loss():
    unnoticed = TIMEOUTS.keepalive_interval_seconds + TIMEOUTS.keepalive_timeout_seconds
    assert unnoticed >= 30 and TIMEOUTS.reconnect_seconds >= 30
    options = dict(rpc.channel_options(TIMEOUTS))
    assert options["grpc.keepalive_time_ms"] == 10_000 and options["grpc.keepalive_timeout_ms"] == 30_000


def test_the_generated_messages_are_current(tmp_path):
    subprocess.run([ROOT / "tools/proto.sh", tmp_path], check=True, timeout=60)
    for name in ("control_pb2.py", "control_pb2.pyi", "control_pb2_grpc.py"):
        expected = (tmp_path / "luwu/control" / name).read_text()
        assert (ROOT / "src/luwu/control" / name).read_text() == expected, "run `make proto`"
