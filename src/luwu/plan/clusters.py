"""Clusters that a run runs on: workers, their links, the servers and their disks; some have names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from luwu.core.errors import ConfigError
from luwu.plan.gpus import GPUS, Gpu

Aggregation = Literal["switch", "multicast", "none", "memory"]


@dataclass(frozen=True)
class Disk:
    """A disk. It moves no more in both directions together than it reads, and writes no more than flash takes."""

    name: str
    read_rate: float
    write_rate: float
    capacity_bytes: float
    watts: float
    source: str
    endurance_bytes: float | None = None
    """Bytes that may be written to it in its life; None: not known."""

    def seconds(self, read_bytes: float, written_bytes: float) -> float:
        """Return the seconds for this many bytes read and written."""
        return max((read_bytes + written_bytes) / self.read_rate, written_bytes / self.write_rate)


def _disk(name: str, read_gb: float, write_gb: float, terabytes: float, watts: float, source: str) -> Disk:
    return Disk(name, read_gb * 1e9, write_gb * 1e9, terabytes * 1e12, watts, source)


DISKS: dict[str, Disk] = {
    disk.name: disk
    for disk in (
        _disk("paper-server", 52 / 12, 26 / 12, 3.84, 12, "arXiv 2409.00918: 12 disks, 26 GB/s each way at 1:1"),
        _disk("paper-worker", 52 / 16, 26 / 16, 3.84, 12, "arXiv 2409.00918: 16 disks, 26 GB/s each way at 1:1"),
        _disk("pm1733-3.84tb", 7.0, 3.8, 3.84, 20, "Samsung's data sheet, PCIe 4, not read again"),
        _disk(
            "pm1743-3.84tb",
            13.0,
            4.8,
            3.84,
            23,
            "Samsung's data sheet, PCIe 5; 13 GB/s as on anandtech.com",
        ),
        _disk("p4510-2tb", 3.2, 2.0, 2.0, 12, "Intel's data sheet, PCIe 3, not read again"),
        _disk("990-pro-2tb", 7.4, 6.9, 2.0, 6, "Samsung's data sheet, PCIe 4, while its cache lasts; not read again"),
        _disk(
            "virtual",
            2.0,
            2.0,
            1.0,
            0,
            "a guess at a cloud's virtual disk: give yours with --disk-read and --disk-write",
        ),
    )
}


@dataclass(frozen=True)
class Server:
    """A parameter server's machine."""

    link_rate: float
    memory_bytes: float
    memory_rate: float
    flops: float
    disk: Disk
    disks: int
    watts: float = 800.0

    def disk_seconds(self, read_bytes: float, written_bytes: float) -> float:
        """Return the seconds of all its disks for this many bytes read and written, evenly spread."""
        return self.disk.seconds(read_bytes, written_bytes) / self.disks


@dataclass(frozen=True)
class WorkerHost:
    """A machine with one or more workers; its disks and memory matter to those that offload to them."""

    gpus: int
    memory_bytes: float
    memory_rate: float
    disk: Disk | None = None
    disks: int = 0
    watts: float = 400.0


@dataclass(frozen=True)
class Cluster:
    """Workers, each with one GPU and a link of its own, and servers behind switches.

    ``link_rate`` is of one direction, in bytes a second. ``aggregation``: what adds gradients up and copies parameters
    on their way: a switch; nothing but IP multicast for parameters; nothing, so the server has a stream for each; or
    the memory of one machine, which is server and workers' host at once. Then ``host`` and ``server`` share memory and
    disk, and ``link_rate`` does not count.
    """

    name: str
    gpu: Gpu
    workers: int
    link_rate: float
    host: WorkerHost
    server: Server
    servers: int
    aggregation: Aggregation
    source: str

    @property
    def one_machine(self) -> bool:
        """True where server and workers share one machine's memory and disk."""
        return self.aggregation == "memory"

    @property
    def hosts(self) -> int:
        """Machines with workers."""
        return -(-self.workers // self.host.gpus)

    def check(self) -> None:
        """Refuse what cannot be built; ConfigError names the number."""
        for name, value in (("workers", self.workers), ("servers", self.servers), ("disks", self.server.disks)):
            if value < 1:
                raise ConfigError(f"{name}: expected at least 1, found {value}")
        if self.host.gpus > self.workers:
            raise ConfigError(
                f"cluster: a host has {self.host.gpus} GPUs, found {self.workers} workers; use at least a host's"
            )


_DDR4_8 = 204.8e9  # one socket, eight channels of DDR4-3200
_EPYC_32 = 2.5e12  # flop a second: 32 cores x 2.45 GHz x 32 (AVX2, two FMA units)

_PAPER_SERVER = Server(
    link_rate=12.5e9,
    memory_bytes=512 * 2**30,
    memory_rate=2 * _DDR4_8,
    flops=2 * _EPYC_32,
    disk=DISKS["paper-server"],
    disks=12,
)
_PAPER_HOST = WorkerHost(
    gpus=1, memory_bytes=64 * 2**30, memory_rate=128e9, disk=DISKS["paper-worker"], disks=2, watts=300
)

CLUSTERS: dict[str, Cluster] = {
    cluster.name: cluster
    for cluster in (
        Cluster(
            name="paper",
            gpu=GPUS["a100-40gb-pcie3"],
            workers=8,
            link_rate=12.5e9,
            host=_PAPER_HOST,
            server=_PAPER_SERVER,
            servers=1,
            aggregation="switch",
            source="arXiv 2409.00918, set-up; it does not give host memory: 64 GiB is the size with which "
            "ZeRO-Infinity trains 175B on 8 workers and not 276B, as it says",
        ),
        Cluster(
            name="dgx-a100",
            gpu=GPUS["a100-40gb-sxm"],
            workers=32,
            link_rate=25e9,
            host=WorkerHost(
                gpus=8, memory_bytes=2**40, memory_rate=2 * _DDR4_8, disk=DISKS["pm1733-3.84tb"], disks=4, watts=2300
            ),
            server=replace(_PAPER_SERVER, link_rate=25e9, disk=DISKS["pm1733-3.84tb"]),
            servers=1,
            aggregation="switch",
            source="NVIDIA DGX A100 320GB data sheet: 8 GPUs, 8 x 200 Gb/s, 1 TB memory, 15 TB NVMe, 6.5 kW",
        ),
        Cluster(
            name="selene",
            gpu=GPUS["a100-80gb-sxm"],
            workers=3072,
            link_rate=25e9,
            host=WorkerHost(
                gpus=8, memory_bytes=2 * 2**40, memory_rate=2 * _DDR4_8, disk=DISKS["pm1733-3.84tb"], disks=4,
                watts=2300,
            ),
            server=replace(_PAPER_SERVER, link_rate=25e9, disk=DISKS["pm1733-3.84tb"]),
            servers=8,
            aggregation="switch",
            source="arXiv 2104.04473: DGX A100 640GB, 8 x 200 Gb/s HDR, fat tree",
        ),
        Cluster(
            name="h100-ethernet",
            gpu=GPUS["h100-80gb-pcie"],
            workers=8,
            link_rate=25e9,
            host=WorkerHost(gpus=1, memory_bytes=256 * 2**30, memory_rate=307e9),
            server=Server(
                link_rate=50e9, memory_bytes=2**40, memory_rate=2 * 307e9, flops=2 * _EPYC_32,
                disk=DISKS["pm1743-3.84tb"], disks=16,
            ),
            servers=1,
            aggregation="switch",
            source="one-GPU machines on 200 Gb/s Ethernet, a two-socket server of DDR5 and PCIe 5",
        ),
        Cluster(
            name="desktops",
            gpu=GPUS["rtx-4090"],
            workers=4,
            link_rate=1.25e9,
            host=WorkerHost(gpus=1, memory_bytes=64 * 2**30, memory_rate=80e9),
            server=Server(
                link_rate=1.25e9, memory_bytes=64 * 2**30, memory_rate=80e9, flops=1e12, disk=DISKS["990-pro-2tb"],
                disks=2, watts=200,
            ),
            servers=1,
            aggregation="switch",
            source="desktops on 10 Gb/s Ethernet, one of them the server; luwu switch beside it",
        ),
    )
}  # fmt: skip
