"""Faults while 4 workers train over UDP through a switch, in network namespaces: the bits of an undisturbed run.

One run meets them all in turn: the switch is killed (SIGKILL) and started again, once on a host whose clock starts
anew, and hangs (SIGSTOP) for some seconds; a worker's link is cut and mended, then the server's, the disk under the
server's store is full for some seconds, a worker gives a step up, one writes text on its own, a worker is killed and
all join again, the server is killed and started again. Beside it, a run of `luwu train` finds the disks under its run
folder and under its store full, is stopped, and another run names its store. Every step's loss and the store at the
end must be those of a run that nobody disturbed.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kit.common import BenchmarkError, NotInstalledError, Options, Row, arguments, result, run, table
from kit.network_training import Site, bits_of, digest_of
from kit.train_faults import TrainRun

from harness.network import Link
from harness.network.namespaces import wait_until
from harness.small_disk import NotMountedError, SmallDisk, mounted_disk, remove_copies, share_versions

NAME = "network_faults"
BAR = (
    "every loss and the final store bit for bit those of the undisturbed run; a worker's or the server's death noticed "
    "within 5 s, WorkerLostError and ServerError"
)
UNIT = "faults survived"
WORKERS = 4
NOTICED_SECONDS = 5.0
STEPS_BETWEEN = 4
PAUSED = "paused: "
CLOCK_AHEAD = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", "1000000")  # by eleven days


class Disturbed:
    """A run that trains from fault to fault; `losses` are the bits of every step that was committed."""

    def __init__(self, site: Site, store: Path, clock: Sequence[str]) -> None:
        self.site = site
        self.ranks = [worker.rank for worker in site.workers]
        self.store = store
        self.losses: dict[int, list[str]] = {}
        self.wrote_at = 0
        self.rows: list[list[Any]] = []
        self.server = site.start_server(store, len(self.ranks))
        self.switch = site.start_switch(clock)
        self.step = site.join(site.url, len(self.ranks))

    def train(self, steps: int) -> None:
        """Some steps in peace."""
        first, self.step = self.step, self.step + steps
        self._keep(first, self.site.ask(len(self.ranks), "train", to=self.step))

    def during(self, name: str, fault: Any) -> None:
        """`fault()` in the middle of some steps; it is survived where they end."""
        first, self.step = self.step, self.step + 3 * STEPS_BETWEEN
        for worker in self.site.workers:
            worker.send("train", to=self.step, say=True)
        one = self.site.workers[0]
        while one.receive()["step"] < first + STEPS_BETWEEN:
            pass
        mended = fault()
        reached = one.receive()["step"]  # said before the fault or during it: the next one is after it
        while reached < self.step and time.monotonic() < mended:
            reached = one.receive()["step"]
        back = one.receive() if reached < self.step else {"step": reached}
        seconds = time.monotonic() - mended
        answers = [worker.finish() for worker in self.site.workers]
        self._keep(first, answers)
        self.rows.append([name, back["step"], seconds, "goes on"])

    def fill_disk(self, disk: SmallDisk, seconds: float) -> float:
        """Fill the disk under the store, and clear it some time after the server has paused; return that time."""
        said = self.server.output().count(PAUSED)
        disk.fill()  # first: steps that end meanwhile take no room then
        share_versions(self.store)
        wait_until(lambda: self.server.output().count(PAUSED) > said, "the server to pause")
        time.sleep(seconds)
        remove_copies(self.store)
        disk.clear()
        return time.monotonic()

    def until_lost(self, name: str, fault: Any, survivors: list[int], expected: str) -> None:
        """`fault()` in the middle of some steps, which ends the run with this error for the survivors."""
        first = self.step
        for worker in self.site.workers:
            worker.send("train", to=self.step + 1000, say=True)
        told = {rank: [] for rank in survivors}
        one = self.site.workers[survivors[0]]
        while (line := one.receive())["step"] < first + STEPS_BETWEEN:
            told[survivors[0]].append(line["loss"])
        told[survivors[0]].append(line["loss"])
        at = time.monotonic()
        fault()
        noticed = 0.0
        for rank in survivors:
            while "step" in (answer := self.site.workers[rank].receive(may_fail=True)):
                told[rank].append(answer["loss"])
            if answer.get("error") != expected:
                raise BenchmarkError(f"{name}: worker {rank}: expected {expected}, found {answer}")
            noticed = max(noticed, answer["at"] - at)
        self.rows.append([name, first + len(told[survivors[0]]), noticed, expected])
        self._lost_losses(first, told)

    def rejoin(self) -> None:
        """All join again; the run stands at a step that was committed."""
        known = max(self.losses) + 1
        self.step = self.site.join(self.site.url, len(self.ranks))
        if self.step not in (known, known + 1):  # it may have been committed in the moment before it was announced
            raise BenchmarkError(f"resumed at step {self.step}; {known} had been committed")

    def give_up(self) -> None:
        """The last rank gives a step up while the others are in it."""
        *others, quits = self.site.workers
        first, self.step = self.step, self.step + STEPS_BETWEEN
        for worker in others:
            worker.send("attempt")
        quits.send("half_way")
        quits.receive()
        quits.send("train", to=self.step)
        if any(worker.receive()["committed"] for worker in others):
            raise BenchmarkError("a step that one worker gave up was committed")
        for worker in others:
            worker.send("train", to=self.step)
        self._keep(first, [worker.finish() for worker in self.site.workers])
        self.rows.append(["a worker gives a step up", first, 0.0, "goes on"])

    def write(self, tokens: int) -> str:
        """Rank 0 writes text between steps, alone; the text's digest."""
        self.wrote_at = self.step
        return self.site.ask(1, "write", tokens=tokens)[0]["digest"]

    def _keep(self, first: int, answers: list[dict[str, Any]]) -> None:
        for step, bits in enumerate(bits_of(answers), first):
            self.losses[step] = bits

    def _lost_losses(self, first: int, told: dict[int, list[str]]) -> None:
        """Note the survivors' losses in a run that failed, for the steps that all of them have seen committed."""
        for step, bits in enumerate(zip(*told.values(), strict=False), first):
            self.losses[step] = [dict(zip(told, bits, strict=True)).get(rank, "") for rank in self.ranks]


def cut(link: Link, seconds: float) -> float:
    """Pull a cable for some time; return the time when it was plugged in again, by the machine's clock."""
    link.cut()
    time.sleep(seconds)
    link.mend()
    return time.monotonic()


def clock_ahead(options: Options) -> Sequence[str]:
    """The command that runs another one with its clock ahead; empty with --check where that is not permitted."""
    tried = subprocess.run([*CLOCK_AHEAD, "true"], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return CLOCK_AHEAD
    options.leave_out("a clock that starts anew", NotInstalledError(f"no time namespace: {tried.stderr.strip()}"))
    return ()


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    same = found["same_store"] and found.get("same_train", True) and not found["wrong"]
    bits = "the undisturbed run's bits" if same else "**other bits**"
    yield f"{len(found['faults'])} faults of networks, switches, workers, servers and disks", bits, "-"


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    workers = options.size(WORKERS, check=2)
    cut_seconds = options.size(10.0, quick=2.0, check=0.5)
    layers, hidden = options.size((4, 64), check=(2, 32))
    shape = {"layers": layers, "hidden": hidden, "heads": 4, "seq": 64}
    tokens = options.effort(64, quick=16, check=4)
    clock = clock_ahead(options)

    def small_disk(stack: ExitStack, path: Path) -> SmallDisk | None:
        """A disk for the store; none, with --check, where mounting one is not permitted."""
        try:
            return stack.enter_context(mounted_disk(path))
        except NotMountedError as error:
            options.leave_out("a full disk", NotInstalledError(str(error)))
            return None

    def disturb(disturbed: Disturbed, disk: SmallDisk | None) -> str:
        site = disturbed.site

        def restart_switch(before: Sequence[str]) -> float:
            disturbed.switch.signal(signal.SIGKILL)
            disturbed.switch.wait()
            disturbed.switch = site.start_switch(before)
            return time.monotonic()

        def hang_switch() -> float:
            disturbed.switch.signal(signal.SIGSTOP)
            time.sleep(cut_seconds)
            disturbed.switch.signal(signal.SIGCONT)
            return time.monotonic()

        def kill_server() -> None:
            disturbed.server.signal(signal.SIGKILL)

        disturbed.train(STEPS_BETWEEN)
        disturbed.during("the switch is killed and started again", functools.partial(restart_switch, clock))
        if clock:
            disturbed.during("the switch's host, and its clock, start anew", functools.partial(restart_switch, ()))
        disturbed.during(f"the switch hangs for {cut_seconds:g} s", hang_switch)
        for whose, host in (("a worker's", site.workers[1].host), ("the server's", site.server)):
            disturbed.during(
                f"{whose} link is cut for {cut_seconds:g} s", functools.partial(cut, host.link, cut_seconds)
            )
        if disk:
            disturbed.during(
                f"the store's disk is full for {cut_seconds:g} s",
                functools.partial(disturbed.fill_disk, disk, cut_seconds),
            )
        disturbed.give_up()
        written = disturbed.write(tokens)
        disturbed.train(1)
        *survivors, last = disturbed.ranks
        disturbed.until_lost("a worker is killed", site.workers[last].kill, survivors, "WorkerLostError")
        site.replace_worker(last)
        disturbed.rejoin()
        disturbed.train(STEPS_BETWEEN)
        disturbed.until_lost("the server is killed", kill_server, disturbed.ranks, "ServerError")
        disturbed.server = site.start_server(disturbed.store, workers)
        disturbed.rejoin()
        disturbed.train(STEPS_BETWEEN)
        site.ask(workers, "leave")
        return written

    def measure() -> dict[str, Any]:
        with (
            tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder,
            ExitStack() as stack,
            Site(Path(folder), workers, {"shape": shape, "rows": 1}) as site,
        ):
            disk = small_disk(stack, Path(folder) / "disk")
            disturbed = Disturbed(site, Path(folder) / "disk" / "disturbed", clock)
            try:
                written = disturb(disturbed, disk)
            except BenchmarkError as error:
                reports = f"{disturbed.server.report()}\n{disturbed.switch.report()}"
                raise BenchmarkError(f"{error}\n{reports}") from error
            disturbed.switch.stop()
            disturbed.server.stop()
            store = Path(folder) / "undisturbed"
            with site.serving(store, workers):
                site.join(site.url, workers)
                answers = bits_of(site.ask(workers, "train", to=disturbed.wrote_at))
                same_text = site.ask(1, "write", tokens=tokens)[0]["digest"] == written
                answers += bits_of(site.ask(workers, "train", to=disturbed.step))
                site.ask(workers, "leave")
            same_store = digest_of(store) == digest_of(disturbed.store)
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder:
            train_run = TrainRun(Path(folder).resolve(), options)
            same_train = train_run.train()
        wrong = [
            step
            for step, bits in disturbed.losses.items()
            if any(found and found != expected for found, expected in zip(bits, answers[step], strict=True))
        ]
        slowest = max(row[2] for row in disturbed.rows if row[3] != "goes on")
        rows = disturbed.rows + train_run.rows
        table(["fault", "step", "s until noticed, or until the next step", "what happens"], rows)
        print(
            f"{len(disturbed.losses)} of {disturbed.step} steps compared, {len(wrong)} with other bits;"
            f" same text: {same_text}; same store: {same_store}; luwu train: {same_train}"
        )
        details = {
            "faults": rows, "steps": disturbed.step, "steps_compared": len(disturbed.losses), "wrong": wrong,
            "same_store": same_store, "same_text": same_text, "same_train": same_train,
            "slowest_notice_seconds": slowest,
        }  # fmt: skip
        right = same_store and same_text and same_train and not wrong and len(disturbed.losses) >= disturbed.step - 2
        survived = len(rows)
        return result(
            NAME, ours=survived if right else 0, peer=survived, bar=BAR, ok=slowest <= NOTICED_SECONDS, right=right,
            unit=UNIT, details=details,
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
