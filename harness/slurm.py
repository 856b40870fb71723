"""A Slurm cluster of a few nodes on this machine: munged, slurmctld, and a slurmd for each node. It needs root."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.network.namespaces import NetworkError, wait_until
from harness.ports import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")

GOES_ON = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED", "STAGE_OUT"})
"""States of a job that has not ended."""

_CONFIG = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=1
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdTimeout=8
KillWait=5
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def why_no_slurm() -> str:
    """Return the reason why there can be no cluster here; empty: there can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing:
        return f"{', '.join(missing)} not found (apt-get install slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "a cluster on this machine needs root"


class SlurmCluster:
    """A running cluster. Its commands find it through ``environment``."""

    def __init__(self, folder: Path, nodes: list[str]) -> None:
        self.folder, self.nodes = folder, nodes
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin"
        }  # fmt: skip

    def ask(self, *command: str) -> str:
        """Return what a command prints."""
        return subprocess.run(
            command, env=self.environment, cwd=self.folder, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def submit(self, script: Path, output: Path, *arguments: str) -> str:
        """Submit a script, and return the job's number."""
        return self.ask("sbatch", "--parsable", f"--output={output}", *arguments, str(script)).strip()

    def state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING."""
        words = dict(word.split("=", 1) for word in self.ask("scontrol", "show", "job", job).split() if "=" in word)
        return words["JobState"]

    def has_ended(self, job: str) -> bool:
        """Return True if a job has ended, and is not queued again."""
        return self.state(job) not in GOES_ON

    @contextmanager
    def node_lost(self, node: str) -> Iterator[None]:
        """Context manager: kill everything of a node at once, as a power cut does; start its daemon at the end."""
        with self.daemon_lost(node):
            for process in self._processes_of(node):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            yield

    @contextmanager
    def daemon_lost(self, node: str) -> Iterator[None]:
        """Context manager: kill a node's daemon, so that nothing starts there; start it again at the end."""
        os.kill(int((self.folder / f"slurmd-{node}.pid").read_text()), signal.SIGKILL)
        try:
            yield
        finally:
            self.start_node(node)

    def start_node(self, node: str) -> None:
        """Start a node's daemon."""
        subprocess.run(["slurmd", "-N", node], env=self.environment, check=True)

    def _processes_of(self, node: str) -> list[int]:
        """Return the processes that a node runs for jobs, and those that watch over them."""
        found, parents = [], set()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                words = (folder / "environ").read_bytes().split(b"\0")
                own = f"SLURM_CONF={self.folder}/slurm.conf".encode() in words
                if own and f"SLURMD_NODENAME={node}".encode() in words:
                    found.append(int(folder.name))
                    parents.add(int((folder / "stat").read_text().rpartition(") ")[2].split()[1]))
        return found + [parent for parent in parents if _name_of(parent).startswith("slurmstepd")]


def _name_of(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text()
    return ""


@contextmanager
def slurm_cluster(folder: Path, nodes: int) -> Iterator[SlurmCluster]:
    """Run a cluster of nodes ``node1``, ``node2`` and so on; end it, and all of its jobs, at the end."""
    names = [f"node{number}" for number in range(1, nodes + 1)]
    port, *ports = free_ports(1 + nodes)
    host = socket.gethostname()
    lines = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={at} CPUs=2 RealMemory=4000"
        for name, at in zip(names, ports, strict=True)
    ]
    (folder / "state").mkdir()
    config = _CONFIG.format(host=host, port=port, folder=folder, nodes="\n".join(lines), names=",".join(names))
    (folder / "slurm.conf").write_text(config)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    cluster = SlurmCluster(folder, names)
    try:
        _start(cluster, "munged", "--force", f"--key-file={key}", *_munge_files(folder))
        _start(cluster, "slurmctld", "-c")
        for name in names:
            cluster.start_node(name)
        wait_until(lambda: cluster.ask("sinfo", "--noheader", "--format=%T").split() == ["idle"], "idle nodes")
        yield cluster
    finally:
        _end(cluster)


def _munge_files(folder: Path) -> list[str]:
    names = {"socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munge.seed"}
    return [f"--{option}={folder / name}" for option, name in names.items()]


def _start(cluster: SlurmCluster, *command: str) -> None:
    subprocess.run(command, env=cluster.environment, check=True)


def _end(cluster: SlurmCluster) -> None:
    with suppress(subprocess.CalledProcessError, FileNotFoundError, NetworkError):
        cluster.ask("scancel", "--user=root", "--full", "--signal=KILL")
        wait_until(lambda: not cluster.ask("squeue", "--noheader"), "no job", 20)
    pids = [cluster.folder / f"{name}.pid" for name in ("slurmctld", *(f"slurmd-{node}" for node in cluster.nodes))]
    for file in (*pids, cluster.folder / "munged.pid"):
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):
            os.kill(int(file.read_text()), signal.SIGKILL)
