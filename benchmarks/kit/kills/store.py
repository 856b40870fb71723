"""Kills of a process within an operation on a store: made, imported, kept, restored, compacted, set back.

After each kill the store is opened. It must hold what it held before the operation or what the operation makes of it,
as far as the process had come; and the same operation, followed by some steps of training, must then end with every
bit of the run that nobody disturbed.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.disk import operations
from kit.common import BenchmarkError
from kit.kills.course import Clock, Scenario
from kit.kills.processes import Life, ending, files_of, say, watch
from luwu.store import snapshots, upkeep

REHEARSALS = 3
TRIES = 10  # for each kill: the operation may be over before it
Act = Callable[[Path], None]


@dataclass(frozen=True)
class Operation:
    """`prepare` makes what is there before; `act` is killed, and marks what the store holds; `after` goes on."""

    name: str
    prepare: Act
    act: Act
    after: Act
    observe: operations.Observe = operations.observed


def take(top: Path) -> None:
    """Take a snapshot of step 4."""
    operations.mark("is 4")
    operations.mark("may 4 with a snapshot of it")
    snapshots.take(operations.stores_of(top))
    operations.mark("is 4 with a snapshot of it")


def restore(top: Path) -> None:
    """Go from step 4 to the snapshot of step 2."""
    operations.mark("is 4")
    operations.mark("may 2")
    snapshots.restore(operations.stores_of(top), 2)
    operations.mark("is 2")


def remove(top: Path) -> None:
    """Remove the snapshot of step 2."""
    operations.mark("is 4")
    operations.mark("may 4 alone")
    stores = operations.stores_of(top)
    if snapshots.snapshot_steps(stores):  # else it was removed before the kill
        snapshots.remove(stores, 2)
    operations.mark("is 4 alone")


def compact(top: Path) -> None:
    """Give the room of the version that is not committed back."""
    operations.mark("is 3")
    operations.mark("may 3 compact")
    upkeep.compact(operations.stores_of(top))
    operations.mark("is 3 compact")


def go_back(top: Path) -> None:
    """Go from step 3 to step 2, as one of several servers."""
    operations.mark("is 3")
    operations.mark("may 2")
    operations.set_back(operations.stores_of(top), 2)
    operations.mark("is 2")


def train_to(step: int) -> Act:
    """Return what opens the store and trains to a step."""
    return partial(operations.train, until=step)


OPERATIONS = (
    Operation("create", operations.nothing, operations.create, train_to(3)),
    Operation("import", operations.checkpoint, operations.import_it, train_to(9), operations.imported),
    Operation("snapshot", train_to(4), take, train_to(6)),
    Operation("remove a snapshot", operations.with_snapshot, remove, train_to(6)),
    Operation("restore", operations.with_snapshot, restore, train_to(4)),
    Operation("compact", train_to(3), compact, train_to(5)),
    Operation("go back", train_to(3), go_back, train_to(4)),
)


class _Stage:
    """A folder with the store as it is before an operation, and copies of it that processes work on."""

    def __init__(self, folder: Path, operation: Operation) -> None:
        folder.mkdir()
        self.before, self.top, self.undisturbed = folder / "before", folder / "top", folder / "undisturbed"
        self.lives: list[Life] = []
        self._log, self._operation = folder / "log", operation

    def finished(self, name: str, run: Callable[[], Any]) -> dict[str, Any]:
        """Run a process to its end; what it said."""
        life = self._live(name, run)
        if life.wait() != 0:
            raise BenchmarkError(f"{self._operation.name}\n{life.tail()}")
        return life.said

    def begin(self, until: str) -> Life:
        """Begin the operation on a new copy, and return when its process has said this, or has ended."""
        shutil.rmtree(self.top, ignore_errors=True)
        _copy(self.before, self.top)
        life = self._live("killed", partial(_act, self._operation, self.top))
        watch([life], lambda: until in life.said or life.status is not None, self._operation.name)
        return life

    def _live(self, name: str, run: Callable[[], Any]) -> Life:
        self.lives.append(Life(name, self._log, run))
        return self.lives[-1]


def kill_operation(scenario: Scenario, folder: Path, kills: int, operation: Operation) -> None:
    """Kill an operation at random moments of its duration, each time on a copy of the same store."""
    clock = Clock(scenario.name)
    stage = _Stage(folder, operation)
    with ending(stage.lives):
        stage.finished("prepare", lambda: operation.prepare(_made(stage.before)))
        _copy(stage.before, stage.undisturbed)
        known = stage.finished("undisturbed", partial(_undisturbed, operation, stage.undisturbed))
        durations = []
        for _ in range(min(REHEARSALS, kills)):
            rehearsal = stage.begin("ended")
            rehearsal.kill()
            durations.append(rehearsal.said["ended"])
        for _ in range(TRIES * kills):
            life = stage.begin("began")
            clock.sleep(statistics.median(durations))
            life.kill()
            if "ended" in life.said:
                continue
            scenario.kills += 1
            scenario.expect(life.status == -signal.SIGKILL, f"it ended before its kill\n{life.tail()}")
            found = stage.finished("opened", partial(_open, operation, stage.top))
            scenario.resumes += 1
            _compare(scenario, life, found, known)
            left = files_of(stage.top) ^ files_of(stage.undisturbed)
            scenario.expect(not left, f"other files than those of the undisturbed run: {sorted(left)}")
            if scenario.kills == kills:
                break


def _compare(scenario: Scenario, life: Life, found: dict[str, Any], known: dict[str, Any]) -> None:
    """Compare what was there after a kill, and at the end, with what an undisturbed operation makes."""
    words = life.said["allowed"]
    scenario.moments[" or ".join(words)] += 1
    allowed = [known["states"][label] for label in words]
    scenario.expect(found["found"] in allowed, f"expected {words}, {allowed}, found {found['found']}")
    scenario.expect(found["end"] == known["end"], f"the end: expected {known['end']}, found {found['end']}")


def _act(operation: Operation, top: Path) -> None:
    """Do the operation, and tell how far it is."""
    allowed: list[str] = []
    changed = 0.0

    def mark(text: str) -> None:
        nonlocal allowed, changed
        kind, label = text.split(" ", 1)
        before, allowed = allowed, [label] if kind == "is" else [*allowed, label]
        changed = changed if before == allowed else time.monotonic()
        say(allowed=allowed)

    operations.mark = mark
    mark("is before")
    say(began=True)
    began = time.monotonic()
    operation.act(top)
    say(ended=changed - began)  # what comes after the last change only closes files
    signal.pause()


def _open(operation: Operation, top: Path) -> None:
    """Open what was left and say what it is; then do the operation again, and go on."""
    say(found=_words(operation, top))
    operation.act(top)
    operation.after(top)
    say(end=_words(operation, top))


def _undisturbed(operation: Operation, top: Path) -> None:
    """Say what the store is at each of the operation's marks, and at the end."""
    copies: dict[str, Path] = {}

    def mark(text: str) -> None:
        kind, label = text.split(" ", 1)
        if kind == "is":
            copies[label] = top.with_name(f"{top.name}-{label}")
            _copy(top, copies[label])

    operations.mark = mark
    mark("is before")
    operation.act(top)
    operations.mark = lambda text: None
    states = {label: _words(operation, copy) for label, copy in copies.items()}
    say(states=states)
    operation.after(top)
    say(end=_words(operation, top))


def _words(operation: Operation, top: Path) -> list[Any]:
    found = operation.observe(top, operations.model_manifest())
    return [found.step, found.digest, [list(kept) for kept in found.snapshots]]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with its hard links, by which a store and its snapshots share files."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
