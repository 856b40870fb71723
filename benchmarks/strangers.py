"""A server that trains a worker while peers without a key do what they can, beside the same while they call elsewhere.

Over TCP and over UDP, in network namespaces: 10,000 connections are held at once, and each new one takes the place of
the oldest. They say nothing; begin HTTP/2 and stop; open streams without a message; ask for a challenge that they never
answer; begin a hello of the data plane; say one with a wrong token. Over UDP, datagrams of noise and with a plausible
head come beside them. Meanwhile the worker leaves and joins again.

All hosts share this machine's processors. So the bar compares with the same strangers at another host, which takes what
they send and does nothing with it: what is left is what the server does for them. Strangers and that host get the
processors' idle time alone. The table also has the rate without any strangers. Each kind of strangers is one process,
which is stopped (SIGSTOP) while the others have their turn: turns are as short as a few seconds, because this machine's
own pace changes from minute to minute by more than the bar allows.
"""

from __future__ import annotations

import json
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kit.common import PROGRAMS, BenchmarkError, Row, all_of, arguments, result, run, table
from kit.memory import MemoryWatch, memory_of_trees
from kit.network_training import PORT, Site
from kit.processes import environment
from kit.sampling import Bar, compare

from luwu import _native
from luwu.control import control_pb2 as pb
from luwu.control.rpc import PROTOCOL_VERSION

NAME = "strangers"
BAR = (
    "with 10,000 connections, streams and half-open handshakes of peers without a key, and floods of UDP: step rate at "
    "least 95 %, server memory under 64 MiB more, an honest worker joins in under 1 s"
)
UNIT = "steps/s"
TRANSPORTS = ("tcp", "udp")
RATE_BAR = Bar("strangers", "elsewhere", 0.95)
ALONE = Bar("strangers", "alone", 0.0)  # shown, and decides nothing
SINK_HELD = 256
MOST_MORE_BYTES = 64 << 20
JOIN_SECONDS = 1.0
CONNECTIONS = 10_000
CONNECTIONS_PER_SECOND = 1000
DATAGRAMS_PER_SECOND = 10_000
START_SECONDS = 60.0

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
STREAMS = 20
PACKET_HEAD = struct.Struct("<HBBIQHHHBBQIIQ")  # docs/protocol.md
PACKET_MAGIC = 0x554C
PAYLOAD_BYTES = 1408


def http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of RFC 9113."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call_headers() -> bytes:
    """The headers of a call of the control plane, as literals of HPACK without indexing (RFC 7541)."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": "/luwu.control.v1.Control/Hello", ":authority": "server",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def control_openings() -> list[bytes]:
    """First words at the port of the control plane."""
    begun = HTTP2_PREFACE + http2_frame(SETTINGS, 0, 0, b"")
    streams = b"".join(http2_frame(HEADERS, END_HEADERS, 2 * number + 1, call_headers()) for number in range(STREAMS))
    hello = pb.HelloRequest(protocol_version=PROTOCOL_VERSION, nonce=bytes(32)).SerializeToString()
    message = http2_frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(hello)) + hello)
    asked = http2_frame(HEADERS, END_HEADERS, 1, call_headers()) + message
    return [b"", HTTP2_PREFACE[:12], begun + streams, begun + asked]


def data_openings(random_bytes: random.Random) -> list[bytes]:
    """First words at the port of the data plane: nothing, half a hello, and one with a wrong token."""
    hello = b"LUWUTCP1" + struct.pack("<IIQQII", 1, 0, 7, 1, 0, 1) + random_bytes.randbytes(32) + bytes(4)
    checked = hello + struct.pack("<I", _native.crc32c(hello))
    return [b"", checked[:40], checked]


def datagrams(random_bytes: random.Random) -> list[str]:
    """Noise, and heads of every kind of packet with a payload that no key has signed."""
    made = [random_bytes.randbytes(length) for length in (1, 40, 500, 1448)]
    for kind in range(1, 7):
        numbers = (random_bytes.getrandbits(64), 0xFFFF if kind in (1, 4) else 0, 1, PAYLOAD_BYTES)
        head = PACKET_HEAD.pack(
            PACKET_MAGIC,
            1,
            kind,
            1,
            *numbers,
            2,
            0,
            random_bytes.getrandbits(16),
            kind,
            0,
            random_bytes.getrandbits(64),
        )
        made.append(head + random_bytes.randbytes(PAYLOAD_BYTES))
    return [one.hex() for one in made]


def open_ports(pid: int, kind: str) -> list[int]:
    """The ports at which the host of this process listens; `kind`: tcp or udp."""
    listening = {"tcp": "0A", "udp": "07"}[kind]
    tables = [Path(f"/proc/{pid}/net/{kind}{version}").read_text() for version in ("", "6")]
    rows = [line.split() for text in tables for line in text.splitlines()[1:]]
    return sorted({int(row[1].split(":")[1], 16) for row in rows if row[3] == listening})


@dataclass(frozen=True)
class Place:
    """Ports of a host at which strangers call."""

    host: str
    control: int
    data: list[int]
    udp: list[int]


def ports_of_server(site: Site) -> Place:
    """The server's ports, which a stranger would find by trying."""
    (pid,) = site.server_pids
    data = [port for port in open_ports(pid, "tcp") if port != PORT]
    return Place(site.server.address, PORT, data, open_ports(pid, "udp"))


@contextmanager
def sink(site: Site, like: Place) -> Iterator[Place]:
    """A host with as many ports that does nothing with what comes."""
    host = site.network["sink"]
    wanted = {
        "host": host.address, "tcp_ports": 1 + len(like.data), "udp_ports": len(like.udp), "held": SINK_HELD
    }  # fmt: skip
    with host.inside():
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "ours" / "sink.py"), json.dumps(wanted)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(1),
        )  # fmt: skip
    try:
        assert process.stdout is not None
        ports = json.loads(process.stdout.readline() or "null")
        if ports is None:
            raise BenchmarkError(f"the sink ended with {process.wait()}")
        yield Place(host.address, ports["tcp"][0], ports["tcp"][1:], ports["udp"])
    finally:
        process.kill()
        process.communicate()


class Strangers:
    """A process on a host that calls at a place, while `calling`, until `stop`."""

    def __init__(self, site: Site, place: Place, connections: int) -> None:
        random_bytes = random.Random(1)
        openings = [(place.control, words.hex()) for words in control_openings()]
        openings += [(port, words.hex()) for port in place.data for words in data_openings(random_bytes)]
        wanted = {
            "host": place.host, "connections": connections, "openings": openings,
            "connections_per_second": CONNECTIONS_PER_SECOND, "datagrams_per_second": DATAGRAMS_PER_SECOND,
            "udp_ports": place.udp, "datagrams": datagrams(random_bytes),
        }  # fmt: skip
        with site.network["stranger"].inside():
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "ours" / "stranger.py"), json.dumps(wanted)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(1),
            )  # fmt: skip

    def until_full(self) -> None:
        """Returns when it has opened all its connections. Raises BenchmarkError when it has ended."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise BenchmarkError(f"the strangers ended with {self._process.wait()}")

    def pause(self) -> None:
        """Let it do nothing until it is `calling`; what it has opened stays open."""
        self._process.send_signal(signal.SIGSTOP)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Let it call meanwhile."""
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.pause()

    def stop(self) -> dict[str, float]:
        """Ends it; what it has done."""
        self._process.send_signal(signal.SIGCONT)
        output, _ = self._process.communicate(timeout=START_SECONDS)
        return json.loads(output.splitlines()[-1])

    def kill(self) -> None:
        """SIGKILL, where it has not ended."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def strangers(site: Site, place: Place, connections: int) -> Iterator[Strangers]:
    """Strangers that have opened all of their connections, and pause."""
    found = Strangers(site, place, connections)
    try:
        found.until_full()
        found.pause()
        yield found
    finally:
        found.kill()


@dataclass
class Measured:
    """Results of a transport's rounds."""

    joins: list[float] = field(default_factory=list)
    joins_alone: list[float] = field(default_factory=list)
    more_bytes: int = 0
    calls: dict[str, float] = field(default_factory=dict)


class Trained:
    """A worker that trains at a server, with strangers there, with strangers elsewhere, and alone."""

    def __init__(self, site: Site, url: str, steps: int) -> None:
        self.found = Measured()
        (self._pid,) = site.server_pids
        self._site, self._url = site, url
        self._steps = steps
        self._step = site.join(url, 1)
        self._rate()
        self._alone_bytes = memory_of_trees([self._pid])

    def round(self, elsewhere: Strangers, here: Strangers) -> dict[str, float]:
        """The rate of each side, steps per second."""
        rates = {"alone": self._rate()}
        with elsewhere.calling():
            rates["elsewhere"] = self._rate()
        with here.calling(), self._watched_memory():
            rates["strangers"] = self._rate()
        return rates

    def join(self, here: Strangers) -> None:
        """Leave and join again, alone and beside strangers. After that the server has other ports for data."""
        self._join(self.found.joins_alone)
        with here.calling(), self._watched_memory():
            self._join(self.found.joins)

    @contextmanager
    def _watched_memory(self) -> Iterator[None]:
        watch = MemoryWatch([self._pid])
        try:
            yield
        finally:
            watch.stop()
        self.found.more_bytes = max(self.found.more_bytes, watch.total_bytes - self._alone_bytes)

    def _rate(self) -> float:
        self._step += self._steps
        (answer,) = self._site.ask(1, "train", to=self._step)
        seconds = answer["seconds"][self._steps // 10 :]  # the first ones settle
        return len(seconds) / sum(seconds)

    def _join(self, seconds: list[float]) -> None:
        self._site.ask(1, "leave")
        self._site.workers[0].send("join", where=self._url, workers=1, dtype="float32")
        seconds.append(self._site.workers[0].receive()["seconds"])


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for transport, one in found["transports"].items():
        (bar,) = one["bars"].values()
        yield (
            f"training over {transport.upper()} beside {one['calls']['opened']:,} connections of strangers"
            + (", and floods" if one["calls"]["datagrams"] else ""),
            f"{bar['ratio']:.2f} times the steps per second; a worker joins in {max(one['joins']):.2f} s at most; "
            f"{one['more_bytes'] / 2**20:.0f} MiB more",
            f"strangers elsewhere: 1; none: {bar['ratio'] / one['to_alone']:.2f}, {max(one['joins_alone']):.2f} s",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    connections = options.size(CONNECTIONS, check=200)
    steps = options.effort(60, quick=40, check=3)
    joins = options.effort(5, check=1)
    layers, hidden = options.size((4, 128), check=(1, 32))
    settings = {"shape": {"layers": layers, "hidden": hidden, "heads": 4, "seq": 64}, "rows": 1}

    def measure() -> dict[str, Any]:
        compared, found = {}, {}
        with (
            tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder,
            Site(Path(folder), 1, settings, wired=False, others=["stranger", "sink"]) as site,
        ):
            for number, transport in enumerate(TRANSPORTS):
                with site.sharing(Path(folder) / transport, 1, 1, transport) as url:
                    trained = Trained(site, url, steps)
                    place = ports_of_server(site)
                    with (
                        sink(site, place) as other,
                        strangers(site, other, connections) as elsewhere,
                        strangers(site, place, connections) as here,
                    ):
                        compared[transport] = compare(
                            options, partial(trained.round, elsewhere, here), [RATE_BAR], rounds=25,
                            family=len(TRANSPORTS), share=1 / (len(TRANSPORTS) - number),
                        )  # fmt: skip
                        for _ in range(joins):
                            trained.join(here)
                        trained.found.calls = here.stop()
                    site.ask(1, "leave")
                found[transport] = trained.found
        table(
            ["transport", "steps/s alone", "strangers elsewhere", "here", "ratio", "to alone",
             "join s alone", "beside strangers, worst",
             "MiB more", "connections/s", "datagrams/s"],
            [[transport, *row_of(compared[transport], found[transport])] for transport in TRANSPORTS],
        )  # fmt: skip
        worst = min(TRANSPORTS, key=lambda transport: compared[transport].ratio(RATE_BAR))
        more_bytes = max(each.more_bytes for each in found.values())
        slowest = max(seconds for each in found.values() for seconds in each.joins)
        ok = all_of(*(each.ok for each in compared.values()), more_bytes < MOST_MORE_BYTES, slowest < JOIN_SECONDS)
        details = {
            transport: {
                **compared[transport].details(), "to_alone": compared[transport].ratio(ALONE),
                "rates": compared[transport].rounds, "joins": found[transport].joins,
                "joins_alone": found[transport].joins_alone, "more_bytes": found[transport].more_bytes,
                "calls": found[transport].calls,
            }
            for transport in TRANSPORTS
        }  # fmt: skip
        called = min(one.calls["opened"] for one in found.values()) >= connections
        return result(
            NAME, ours=compared[worst].medians["strangers"], peer=compared[worst].medians["elsewhere"],
            ratio=compared[worst].ratio(RATE_BAR), bar=BAR, ok=ok, right=called, unit=UNIT,
            details={"transports": details, "more_bytes": more_bytes, "slowest_join_seconds": slowest},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


def row_of(compared: Any, found: Measured) -> list[object]:
    """The cells of a transport's row."""
    rates = [found.calls[name] / found.calls["seconds"] for name in ("opened", "datagrams")]
    return [
        *(compared.medians[side] for side in ("alone", "elsewhere", "strangers")), compared.ratio(RATE_BAR),
        compared.ratio(ALONE),
        statistics.median(found.joins_alone), max(found.joins), found.more_bytes / 2**20, *rates,
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
