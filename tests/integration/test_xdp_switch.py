"""`luwu switch --xdp` on a machine with a port for each neighbour: what it attaches, and what it leaves behind."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.network import KEY, make_authority, make_certificate
from tests.network_fixtures import NetworkFactory

from harness.network import Host, Network, Process
from harness.network.namespaces import command, wait_until
from harness.network.stream import Stream, numbered, numbers
from harness.network.xdp import bridge_host, counted
from luwu import _native

LUWU = [sys.executable, "-m", "luwu.cli"]
STEPS = 5

WORKER = """
import sys
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.integration.network import KEY
from luwu.session.remote import connect
url, rank, workers, steps = sys.argv[1], *map(int, sys.argv[2:])
with connect(url, rank=rank, workers=workers, key=KEY) as session:
    worker = NumpyWorker(session, small_manifest())
    for _ in range(steps):
        assert worker.step()
"""


def refusal() -> str | None:
    """Why there can be no XDP here."""
    if missing := _native.xdp_missing():
        return missing
    if os.geteuid() != 0:
        return "XDP needs root"
    return None


pytestmark = pytest.mark.skipif(refusal() is not None, reason=str(refusal()))


@dataclass
class Site:
    """A machine with ports, and its neighbours: a server and two workers."""

    net: Network
    middle: Host
    ports: list[str]
    folder: Path

    def serve(self, switches: int = 1) -> str:
        """Start a server; its URL."""
        store = self.folder / "store"
        flags = ["--store", str(store), "--workers", "2", "--memory", "64MiB", "--transport", "udp"]
        address = self.net["server"].address
        process = self.net["server"].popen(
            [*LUWU, "server", *flags, "--switches", str(switches), "--listen", f"{address}:0"], {"LUWU_JOB_KEY": KEY}
        )
        return said(process, r"(luwu://\S+:\d+)\n")

    def switch(self, url: str, *flags: str, ports: list[str] | None = None) -> Process:
        """Start the switch with a program on its ports."""
        listen = ["--listen", f"{self.middle.address}:0", "--name", "middle"]
        xdp = ["--xdp", ",".join(ports or self.ports)]
        return self.middle.popen([*LUWU, "switch", "--server", url, *xdp, *listen, *flags], {"LUWU_JOB_KEY": KEY})

    def train(self, url: str) -> None:
        """A run of two workers."""
        workers = [
            self.net[name].popen([sys.executable, "-c", WORKER, url, str(rank), "2", str(STEPS)])
            for rank, name in enumerate(("w0", "w1"))
        ]
        for worker in workers:
            assert worker.wait(60) == 0, worker.report()

    def attached(self) -> dict[str, str]:
        """Names of the programs on the ports, by port."""
        found = json.loads(command("ip", "-n", self.middle.namespace, "-d", "-json", "link", "show"))
        return {
            link["ifname"]: link["xdp"]["prog"]["name"]
            for link in found
            if link["ifname"] in self.ports and "xdp" in link
        }


def said(process: Process, pattern: str) -> str:
    """Wait until a process has written it; the first group."""
    found: list[str] = []

    def has() -> bool:
        found[:] = re.findall(pattern, process.output())
        assert process.returncode is None or found, process.report()
        return bool(found)

    wait_until(has, f"{pattern!r} from {process.name}")
    return found[0]


@pytest.fixture
def site(request: pytest.FixtureRequest, network: NetworkFactory, tmp_path: Path) -> Iterator[Site]:
    """A network whose frames have the size that a test asks for, if it does."""
    with network(mtu_bytes=getattr(request, "param", 1500)) as net:
        middle, ports = bridge_host(net, ["server", "w0", "w1"])
        yield Site(net, middle, ports, tmp_path)


@pytest.mark.parametrize(
    ("site", "mode", "payload", "sums"),
    [(1500, "native", 1408, 100), (9000, "generic", 8832, 20)],
    indirect=["site"],
    ids=["plain frames", "jumbo frames, in the stack"],
)
def test_a_run_through_the_kernel(site: Site, mode: str, payload: int, sums: int) -> None:
    url = site.serve()
    switch = site.switch(url)
    said(switch, r"(joined) server")
    assert set(re.findall(r"xdp interface=\S+ mode=(\w+)", switch.output())) == {mode}
    assert site.attached() == dict.fromkeys(site.ports, "luwu_pass")
    site.train(url)
    assert switch.stop() == 0
    assert f"payload={payload}" in switch.output()
    assert counted(switch, "sums_sent") > sums
    assert site.attached() == {}


def kept_rights(pid: int) -> set[tuple[str, str]]:
    """All threads' user ids, sets of capabilities, and whether programs can get new rights."""
    wanted = ("Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            lines = (line.split(":") for line in (thread / "status").read_text().splitlines())
            found |= {(name, " ".join(value.split())) for name, value in lines if name in wanted}
    return found


def rights_of(user: int, group: int) -> set[tuple[str, str]]:
    """The rights that a switch keeps: CAP_NET_ADMIN, CAP_PERFMON and CAP_BPF are permitted, and none is in force."""
    kept = f"{1 << 12 | 1 << 38 | 1 << 39:016x}"
    ids = {("Uid", " ".join([str(user)] * 4)), ("Gid", " ".join([str(group)] * 4)), ("NoNewPrivs", "1")}
    none = {(name, "0" * 16) for name in ("CapInh", "CapEff", "CapBnd", "CapAmb")}
    return ids | none | {("CapPrm", kept)}


def test_roots_rights_are_given_up_and_job_after_job_is_served(site: Site) -> None:
    url = site.serve()
    switch = site.switch(url)
    said(switch, r"(joined) server")
    nobody = pwd.getpwnam("nobody")
    # If Python itself lies in a folder that is closed to others, the switch has to stay root's.
    stays = re.search(r"keeps user=root why=nobody cannot read \S+", switch.output())
    expected = rights_of(0, 0) if stays else rights_of(nobody.pw_uid, nobody.pw_gid)
    assert kept_rights(switch.pid) == expected
    for _ in range(2):  # each job has a program and maps of its own
        site.train(url)
        assert kept_rights(switch.pid) == expected
    assert switch.stop() == 0
    assert len(re.findall("in the kernel packets_in=", switch.output())) == 2
    assert site.attached() == {}


def test_tls_files_that_the_user_cannot_read_keep_the_switch_roots(site: Site) -> None:
    authority = make_authority(site.folder, "authority")
    tls = make_certificate(site.folder, "switch", authority)
    site.folder.chmod(0o700)
    flags = ("--tls-cert", str(tls.certificate), "--tls-key", str(tls.key), "--tls-ca", str(tls.authority))
    switch = site.switch("luwu://127.0.0.1:1", *flags)
    said(switch, r"(listens) at=")
    assert said(switch, r"keeps user=root why=nobody cannot read (\S+);")
    assert kept_rights(switch.pid) == rights_of(0, 0)


def test_a_user_whom_nobody_knows(site: Site) -> None:
    switch = site.switch("luwu://127.0.0.1:1", "--user", "not-there")
    assert switch.wait() == 2
    assert "expected the name of one of this machine's users, found 'not-there'" in switch.output()


def test_children_behind_one_port_get_a_copy_each(network: NetworkFactory, tmp_path: Path) -> None:
    with network() as net:
        middle, ports = bridge_host(net, ["server"], behind_one_port=["w0", "w1"])
        site = Site(net, middle, ports, tmp_path)
        url = site.serve()
        switch = site.switch(url)
        said(switch, r"(joined) server")
        site.train(url)
        switch.stop()
        assert counted(switch, "sums_sent") > 100
        assert counted(switch, "sums_sent_again") < 10


def test_nothing_stays_behind_after_a_sudden_end_and_the_next_one_serves(site: Site) -> None:
    url = site.serve()
    first = site.switch(url)
    said(first, r"(joined) server")
    first.signal(signal.SIGKILL)
    first.wait()
    wait_until(lambda: site.attached() == {}, "ports without a program")
    second = site.switch(url)
    said(second, r"(joined) server")
    site.train(url)
    second.stop()
    assert counted(second, "sums_sent") > 100


def test_other_traffic_passes(site: Site) -> None:
    """Between neighbours, and to the machine itself; TCP, UDP and ping."""
    url = site.serve()
    said(site.switch(url), r"(joined) server")  # over TCP, through a port with the program
    with Stream(site.net["w0"], site.net["w1"]) as stream:
        stream.send(numbered(50))
        assert numbers(stream.receive(50)) == list(range(1, 51))
    with Stream(site.net["w0"], site.middle) as stream:
        stream.send(numbered(50))
        assert numbers(stream.receive(50)) == list(range(1, 51))
    site.train(url)


def test_an_interface_that_has_a_program_already(site: Site) -> None:
    url = site.serve(2)
    said(site.switch(url), r"(joined) server")
    second = site.switch(url, "--name", "other")  # the last --name counts
    assert second.wait() == 2
    assert "has an XDP program already" in second.output()
    assert site.attached() == dict.fromkeys(site.ports, "luwu_pass")


def test_an_interface_that_is_not_there(site: Site) -> None:
    switch = site.switch("luwu://127.0.0.1:1", ports=["eth7"])
    assert switch.wait() == 2
    assert "there is no interface 'eth7'" in switch.output()


def test_without_the_right_to(site: Site) -> None:
    command_line = [
        *LUWU,
        "switch",
        "--server",
        "luwu://127.0.0.1:1",
        "--xdp",
        site.ports[0],
        "--listen",
        "127.0.0.1:0",
    ]
    switch = site.middle.popen(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command_line], {"LUWU_JOB_KEY": KEY}
    )
    assert switch.wait() == 1
    assert "XDP needs the capabilities" in switch.output()
