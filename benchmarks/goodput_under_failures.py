"""Useful steps an hour where a worker is killed every few seconds: LuWu, torchft, and DDP that restarts.

Two workers train the same model on two cores. LuWu's are forks, as of `luwu train`, and share a server over TCP, which
has a commit point as often as DDP a checkpoint; another takes the place of a killed one, and the other one waits for
it. torchft's replicas average over gloo; another one is started, and meanwhile the other makes steps alone, which
count as half. DDP's workers are torchrun's, which starts both again; they go on from a checkpoint, and steps that they
make a second time count once. Each also runs undisturbed.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from kit.common import PROGRAMS, BenchmarkError, NotInstalledError, Options, Row, arguments, result, run, table
from kit.processes import environment, in_a_session
from ours.elastic import KEY, WORKERS

from luwu.control.credentials import Credentials
from luwu.core.room import NO_WAIT
from luwu.launch.template import Template
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings

NAME = "goodput_under_failures"
BAR = "with a worker killed every few steps: more useful steps an hour than torchft, and than DDP with restarts"
UNIT = "useful steps an hour"
MEMORY = 1 << 30
CHECKPOINT_EVERY = 10
MANY_STEPS = 1 << 30
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.05

Kill = Callable[[int], None]
"""Function that kills a worker; its system starts another one."""


def read_log(log: Path) -> list[dict[str, Any]]:
    """Return the objects of a log. A process that was killed may have left a part of one, or no end of its line."""
    text = log.read_text() if log.exists() else ""
    return [json.loads(found) for found in re.findall(r"\{[^{}]*\}", text)]


def useful_steps(log: Path, first: float, last: float) -> float:
    """Count the steps that were made between two moments, those with fewer workers as a part, repeated ones once."""
    steps: dict[int, tuple[float, float]] = {}
    for row in read_log(log):
        if "step" in row:
            at, share = steps.get(row["step"], (row["at"], 0.0))
            steps[row["step"]] = min(at, row["at"]), max(share, row.get("workers", WORKERS) / WORKERS)
    return sum(share for at, share in steps.values() if first <= at < last)


@contextmanager
def by_luwu(folder: Path, settings: Mapping[str, Any], python: Path) -> Iterator[Kill]:
    """Train at a server of this process."""
    served = ServerSettings(
        stores=(folder / "store",), workers=WORKERS, listen="127.0.0.1:0", memory=MEMORY, worker_return_seconds=60,
        durable=f"{CHECKPOINT_EVERY} steps",
    )  # fmt: skip
    with NetworkServer(served, Credentials(KEY.encode())) as server, Path(settings["log"]).open("a") as log:
        wanted = folder / "wanted.json"
        wanted.write_text(json.dumps({"where": server.url, "steps": MANY_STEPS, **settings}))
        template = Template("ours.elastic", wanted, folder / "template.log", environment(1), NO_WAIT)
        try:
            workers = [template.fork(rank, log.fileno(), log.fileno()) for rank in range(WORKERS)]

            def kill(rank: int) -> None:
                workers[rank].send_signal(signal.SIGKILL)
                workers[rank].wait()
                workers[rank] = template.fork(rank, log.fileno(), log.fileno())

            yield kill
        finally:
            template.kill()


def peer(
    python: Path, program: str, settings: Mapping[str, Any], *before: str, output: int | None = None
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Return the context manager that runs a program of a peer."""
    command = [str(python), *before, str(PROGRAMS / "peers" / program), json.dumps(dict(settings))]
    return in_a_session(command, environment(1), Path(f"{settings['log']}.errors"), output)


@contextmanager
def by_torchft(folder: Path, settings: Mapping[str, Any], python: Path) -> Iterator[Kill]:
    """Train by two replicas of torchft."""
    with ExitStack() as stack:
        lighthouse = stack.enter_context(peer(python, "torchft_lighthouse.py", settings, output=subprocess.PIPE))
        address = json.loads((lighthouse.stdout and lighthouse.stdout.readline()) or "{}").get("address")
        if address is None:
            raise NotInstalledError("torchft is not installed: run tools/peers.sh")

        def start(rank: int) -> subprocess.Popen[str]:
            own = {"rank": rank, "lighthouse": address, **settings}
            return stack.enter_context(peer(python, "torchft_train.py", own))

        replicas = [start(rank) for rank in range(WORKERS)]

        def kill(rank: int) -> None:
            os.killpg(replicas[rank].pid, signal.SIGKILL)
            replicas[rank].wait()
            replicas[rank] = start(rank)

        yield kill


@contextmanager
def by_ddp(folder: Path, settings: Mapping[str, Any], python: Path) -> Iterator[Kill]:
    """Train by DDP under torchrun."""
    own = {"checkpoint": str(folder / "checkpoint.pt"), "every": CHECKPOINT_EVERY, **settings}
    how = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS), "--max-restarts", "1000",
           "--monitor-interval", "0.1")  # fmt: skip
    log = Path(settings["log"])

    def processes() -> dict[int, int]:
        return {row["rank"]: row["process"] for row in read_log(log) if "process" in row}

    def kill(rank: int) -> None:
        with suppress(ProcessLookupError):  # it has not started again since the last time
            os.kill(processes()[rank], signal.SIGKILL)

    with peer(python, "ddp_restart_train.py", own, *how) as torchrun:
        try:
            yield kill
        finally:
            torchrun.terminate()  # it ends its workers, also those that it has just started again
            torchrun.wait()


SYSTEMS = {"LuWu": by_luwu, "torchft": by_torchft, "DDP, restarts": by_ddp}


def play(name: str, folder: Path, settings: Mapping[str, Any], python: Path, times: Mapping[str, float]) -> list[float]:
    """Return the useful steps a second of an undisturbed time, and of one with kills."""
    folder.mkdir()
    log = folder / "log"
    chance = random.Random(21)
    with SYSTEMS[name](folder, {"log": str(log), **settings}, python) as kill:
        wait_for_steps(log, 5, name)
        began = time.monotonic()
        time.sleep(times["calm"])
        calm_end = time.monotonic()
        while time.monotonic() < calm_end + times["kills"]:
            kill(chance.randrange(WORKERS))
            time.sleep(times["between"])
        end = time.monotonic()
    calm, disturbed = useful_steps(log, began, calm_end), useful_steps(log, calm_end, end)
    return [calm / (calm_end - began), disturbed / (end - calm_end)]


def wait_for_steps(log: Path, steps: int, name: str) -> None:
    """Return when a system has made some steps with all workers."""
    end = time.monotonic() + PATIENCE_SECONDS
    while sum(row.get("workers", WORKERS) == WORKERS for row in read_log(log) if "step" in row) < steps:
        if time.monotonic() > end:
            errors = Path(f"{log}.errors")
            raise BenchmarkError(f"{name} made no step: {errors.read_text()[-3000:] if errors.exists() else log}")
        time.sleep(POLL_SECONDS)


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    rates = {name: f"{one['steps_an_hour']:,.0f} ({one['share']:.0%})" for name, one in found["systems"].items()}
    ours = rates.pop("LuWu")
    yield (
        f"useful steps an hour with a worker killed every {found['seconds_between_kills']:.0f} s (and the share of the "
        "undisturbed rate)",
        ours,
        "; ".join(f"{name} {rate}" for name, rate in rates.items()),
    )


def measure_all(options: Options, folder: Path) -> dict[str, Any]:
    """Let each system run in turn, and return their medians."""
    shape = options.size(
        {"layers": 6, "hidden": 512, "heads": 8, "seq": 64}, check={"layers": 1, "hidden": 32, "heads": 4, "seq": 32}
    )
    between = options.effort(10.0, quick=6.0, check=2.0)
    times = {
        "calm": options.effort(10.0, quick=3.0, check=1.0), "kills": options.effort(40.0, quick=6.0, check=2.0),
        "between": between,
    }  # fmt: skip
    settings = {"shape": shape, "rows": 2}
    found: dict[str, list[list[float]]] = {}
    for number in range(options.size(3, quick=1, check=1)):
        for name in SYSTEMS:
            try:
                python = options.peer_python("torch" if name != "torchft" else "torchft")
                found.setdefault(name, []).append(play(name, folder / f"{number}-{name}", settings, python, times))
            except NotInstalledError as error:
                options.leave_out(name, error)
    systems = {}
    for name, samples in found.items():
        calm, disturbed = map(statistics.median, zip(*samples, strict=True))
        systems[name] = {
            "undisturbed_steps_an_hour": 3600 * calm, "steps_an_hour": 3600 * disturbed, "share": disturbed / calm,
            "samples": samples,
        }  # fmt: skip
    return {"systems": systems, "seconds_between_kills": between}


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)

    def measure() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder:
            details = measure_all(options, Path(folder))
        systems = details["systems"]
        table(
            ["system", "steps an hour, undisturbed", "with kills", "share"],
            [
                [name, one["undisturbed_steps_an_hour"], one["steps_an_hour"], one["share"]]
                for name, one in systems.items()
            ],
        )
        ours = systems["LuWu"]["steps_an_hour"]
        best = max((one["steps_an_hour"] for name, one in systems.items() if name != "LuWu"), default=None)
        ok = None if best is None else ours > best
        return result(NAME, ours=ours, peer=best, bar=BAR, ok=ok, unit=UNIT, details=details)

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
