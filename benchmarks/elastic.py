"""Workers that are killed or stopped at random moments, one after the other, in one run; others take their places.

Two workers train over shared memory, over TCP and over UDP, with one server and with two that share the model. One gets
SIGKILL at a random moment of a step, and every tenth time SIGSTOP. A stopped worker counts as lost after a deadline.
Another process is started at once, as `luwu train` does: a fork of a process that has imported torch. A run that nobody
disturbed tells the losses and the parameters, bit by bit; UDP has one of its own, because its sums are in fixed point.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kit.common import BenchmarkError, Row, arguments, result, run, table
from kit.processes import environment
from ours.elastic import KEY, WORKERS

from luwu.control.credentials import Credentials
from luwu.control.timeouts import Timeouts
from luwu.core.room import NO_WAIT
from luwu.launch.template import Fork, Template
from luwu.server.laggards import Patience
from luwu.server.network import NetworkServer
from luwu.server.server import LocalServer
from luwu.server.settings import ServerSettings

NAME = "elastic"
BAR = (
    "100 kills, stops and joins in one run of real processes, shared memory, TCP and UDP: no restart of a survivor, at "
    "most one attempt redone each, laggard named in time, back at speed within 2 s of detection, losses within 1e-5 of "
    "the undisturbed, replay of the log bit for bit"
)
UNIT = "seconds from a loss to the next step, at worst"
TWO_SERVERS = ", two servers"
TRANSPORTS = ("shared memory", "TCP", "TCP" + TWO_SERVERS, "UDP", "UDP" + TWO_SERVERS)
CALM = ("shared memory", "UDP")
"""Those with an undisturbed run. It tells the bits of those that follow it."""
CHECKED = ("shared memory", "TCP" + TWO_SERVERS, "UDP")
"""Those of --check: each transport, and several servers once."""
BACK_SECONDS = 2.0
MEMORY = 64 << 20
STEPS_BETWEEN = 3
END_SECONDS = 120.0
POLL_SECONDS = 0.002
DEADLINE_SECONDS = 4.0
STOPS_EACH = 10


@dataclass
class Worker:
    """A process of one rank, and what it has printed."""

    rank: int
    process: Fork
    output: IO[str]
    steps: dict[int, tuple[str, float]] = field(default_factory=dict)  # bits of the loss, and when
    digest: str = ""

    @property
    def last_step(self) -> int:
        """The last step that it has told, 0 before the first."""
        return max(self.steps, default=0)

    def read(self) -> None:
        """Take its lines until it ends."""
        with self.output:
            for line in self.output:
                try:
                    said = json.loads(line)
                except ValueError:  # half a line of a process that was killed, or a warning
                    continue
                if "digest" in said:
                    self.digest = said["digest"]
                else:
                    self.steps[said["step"]] = said["loss"], said["at"]


@dataclass
class Found:
    """Results of one transport."""

    losses: list[dict[int, str]] = field(default_factory=lambda: [{} for _ in range(WORKERS)])
    digests: list[str] = field(default_factory=list)
    noticed_seconds: list[float] = field(default_factory=list)
    stopped_seconds: list[float] = field(default_factory=list)
    back_seconds: list[float] = field(default_factory=list)
    step_seconds: float = 0.0
    voided: int = 0


class Course:
    """A run of two workers at one server or two, and the processes that were in it."""

    def __init__(
        self, where: str, folder: Path, servers: Sequence[LocalServer | NetworkServer], settings: dict[str, Any]
    ) -> None:
        wanted = folder / "wanted.json"
        wanted.write_text(json.dumps({"where": where, **settings}))
        self._template = Template("ours.elastic", wanted, folder / "template.log", environment(1), NO_WAIT)
        self._overdue: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._members = [server._members if isinstance(server, LocalServer) else server._runs.run for server in servers]
        self._readers: list[threading.Thread] = []
        self.now = [self._start(rank) for rank in range(WORKERS)]
        self.all = list(self.now)
        self.found = Found()

    def _start(self, rank: int) -> Worker:
        reading, writing = os.pipe()
        worker = Worker(rank, self._template.fork(rank, writing, writing), os.fdopen(reading))
        os.close(writing)
        self._readers.append(threading.Thread(target=worker.read))
        self._readers[-1].start()
        return worker

    def wait_for(self, step: int) -> None:
        """Return when both workers have made a step or a later one. Raises BenchmarkError where one has ended before.

        A worker that takes a lost one's place begins after this step where the lost one's vote for it had counted.
        """
        deadline = time.monotonic() + END_SECONDS
        while any(worker.last_step < step for worker in self.now):
            ended = [worker.rank for worker in self.now if worker.process.poll() not in (None, 0)]
            if ended or time.monotonic() > deadline:
                raise BenchmarkError(f"step {step} was not made: worker {ended} ended, or it took too long")
            time.sleep(POLL_SECONDS)

    def note_overdue(self, rank: int, why: str) -> None:
        """Note, in any thread, that a worker's time is over; it is killed, as `luwu train` does."""
        self._overdue.put(self.now[rank])

    def replace(self, rank: int, how: signal.Signals) -> None:
        """Kill or stop a worker, start another, and measure until the next step that the other one makes."""
        victim, other = self.now[rank], self.now[1 - rank]
        began = time.monotonic()
        victim.process.send_signal(how)
        while not all(rank in members.vacancies for members in self._members):
            if time.monotonic() > began + END_SECONDS:
                raise BenchmarkError(f"nobody noticed that worker {rank} got {how.name}")
            time.sleep(POLL_SECONDS)
            with suppress(queue.Empty):
                self._overdue.get_nowait().process.kill()
        noticed = time.monotonic()
        times = self.found.noticed_seconds if how is signal.SIGKILL else self.found.stopped_seconds
        times.append(noticed - began)
        self.now[rank] = self._start(rank)
        self.all.append(self.now[rank])
        victim.process.kill()
        victim.process.wait()
        self.wait_for(other.last_step + 1)
        # The store closes with the run. Servers may differ for a moment, until each has heard of a void attempt.
        self.found.voided = max(int(members.stats()["voided"]) for members in self._members)
        first = min(self.now[rank].steps)
        self.wait_for(first)
        self.found.back_seconds.append(max(0.0, other.steps[first][1] - noticed))

    def end(self) -> Found:
        """Wait for the end of the run and return what was found."""
        deadline = time.monotonic() + END_SECONDS
        for worker in self.now:
            while worker.process.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            if worker.process.poll() != 0:
                raise BenchmarkError(f"worker {worker.rank} ended with {worker.process.returncode}")
        for reader in self._readers:
            reader.join(END_SECONDS)
        for worker in self.all:
            self.found.losses[worker.rank] |= {step: loss for step, (loss, _) in worker.steps.items()}
        self.found.digests = [worker.digest for worker in self.now]
        return self.found

    def kill(self) -> None:
        """End all processes."""
        self._template.kill()


@contextmanager
def serving(
    transport: str, folder: Path, on_overdue: Callable[[int, str], None]
) -> Iterator[tuple[str, Sequence[LocalServer | NetworkServer]]]:
    """Serve two workers in this process; yield where they join."""
    if transport == "shared memory":
        patience = Patience(60, DEADLINE_SECONDS, on_overdue)
        with LocalServer(folder, None, MEMORY, WORKERS, on_slow=lambda text: None, patience=patience) as local:
            yield str(local.socket_path), [local]
        return
    timeouts = Timeouts(look_seconds=0.05)
    with ExitStack() as stack:
        servers = []
        for number in range(1 + transport.endswith(TWO_SERVERS)):
            settings = ServerSettings(
                stores=(folder / f"store-{number}",),
                workers=WORKERS,
                listen="127.0.0.1:0",
                memory=MEMORY,
                worker_return_seconds=60,
                step_deadline_seconds=DEADLINE_SECONDS,
                transport="udp" if transport.startswith("UDP") else "tcp",
            )
            servers.append(stack.enter_context(NetworkServer(settings, Credentials(KEY.encode()), timeouts)))
        yield ",".join(server.url for server in servers), servers


def play(transport: str, folder: Path, settings: dict[str, Any], kills: int) -> Found:
    """Run to the end with this many kills, at moments that a seed draws."""
    moments = random.Random(kills)
    courses: list[Course] = []
    with serving(transport, folder, lambda rank, why: courses[0].note_overdue(rank, why)) as (where, servers):
        course = Course(where, folder, servers, settings)
        courses.append(course)
        try:
            for number in range(1, kills + 1):
                made = max(worker.last_step for worker in course.now)
                course.wait_for(made + STEPS_BETWEEN)
                times = [at for _, at in sorted(course.now[0].steps.values(), key=lambda step: step[1])]
                step = statistics.median(later - at for at, later in zip(times[-4:], times[-3:], strict=False))
                time.sleep(moments.random() * step)
                how = signal.SIGSTOP if number % STOPS_EACH == 0 or kills == 1 else signal.SIGKILL
                course.replace(moments.randrange(WORKERS), how)
            return course.end()
        finally:
            course.kill()


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for transport, one in found["transports"].items():
        yield (
            f"{one['kills']} workers killed or stopped in one run over {transport}, another started in each place",
            f"the undisturbed run's bits; {one['voided']} attempts made again; the next step "
            f"{one['median_back_seconds']:.1f} s after a loss was noticed",
            "-",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    kills = options.size(50, quick=4, check=1)
    layers, hidden = options.size((4, 128), check=(1, 32))
    shape = {"layers": layers, "hidden": hidden, "heads": 4, "seq": 64}
    steps = options.effort(kills * (STEPS_BETWEEN + 6), check=20)
    transports = options.size(TRANSPORTS, check=CHECKED)

    def measure() -> dict[str, Any]:
        settings = {"shape": shape, "rows": 4, "steps": steps}
        details: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder:
            for transport in transports:
                if transport in CALM:
                    calm = play(transport, Path(folder) / f"calm {transport}", settings, 0)
                found = play(transport, Path(folder) / transport, settings, kills)
                same = found.digests == calm.digests and all(
                    mine.items() <= theirs.items() for mine, theirs in zip(found.losses, calm.losses, strict=True)
                )
                details[transport] = {
                    "kills": kills, "same_bits": same, "voided": found.voided,
                    "back_seconds": found.back_seconds, "noticed_seconds": found.noticed_seconds,
                    "median_back_seconds": statistics.median(found.back_seconds),
                    "stopped_seconds": found.stopped_seconds,
                    "worst_noticed_seconds": max(found.noticed_seconds, default=0.0),
                }  # fmt: skip
        table(
            ["transport", "kills", "same bits", "attempts made again", "noticed s, worst", "back s, median", "worst"],
            [
                [name, one["kills"], str(one["same_bits"]), one["voided"], one["worst_noticed_seconds"],
                 one["median_back_seconds"], max(one["back_seconds"])]
                for name, one in details.items()
            ],
        )  # fmt: skip
        right = all(one["same_bits"] and one["voided"] <= kills for one in details.values())
        worst = max(max(one["back_seconds"]) for one in details.values())
        return result(
            NAME, ours=worst, peer=BACK_SECONDS, bar=BAR, ok=worst <= BACK_SECONDS, right=right, unit=UNIT,
            details={"transports": details},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
