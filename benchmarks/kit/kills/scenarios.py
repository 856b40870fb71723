"""Scenarios of kills by their names, such as "2 servers, TCP: server": what is killed, and a table's row for it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kit.common import BenchmarkError
from kit.kills.course import Scenario
from kit.kills.network import kill_embedded, kill_part
from kit.kills.processes import processes_naming, shared_memory
from kit.kills.sites import SHARED_MEMORY, TCP, UDP
from kit.kills.store import OPERATIONS, kill_operation
from kit.kills.train import kill_train

Kill = Callable[[Scenario, Path, int], None]
Plan = dict[str, int]
"""Number of kills, by the scenario's name."""


def servers_of(name: str) -> int:
    """Return the number of servers of a scenario, by its name."""
    return 2 if "2 servers" in name else 1


def kills_of(name: str) -> Kill:
    """Return the function that does a scenario's kills, by the scenario's name."""
    if name == "embedded server":
        return kill_embedded
    if name.startswith("store: "):
        return partial(kill_operation, operation=next(each for each in OPERATIONS if name == f"store: {each.name}"))
    where, victim = name.split(": ")
    transport = next(each for each in (SHARED_MEMORY, TCP, UDP) if where.endswith(each))
    part = {"transport": transport, "servers": servers_of(name), "victim": victim}
    if where.startswith("luwu train"):
        return partial(kill_train, **part, workers=2 if victim == "worker" else 1)
    return partial(kill_part, **part)


def do(name: str, kills: int, folder: Path, commit_every: int = 1) -> Scenario:
    """Do the kills of a scenario in a new folder in `folder`, and look at what they have left."""
    scenario, segments, began = Scenario(name, commit_every, servers_of(name)), shared_memory(), time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder, prefix="luwu-") as name_of_folder:
        place = Path(name_of_folder).resolve() / "kills"
        try:
            kills_of(name)(scenario, place, kills)
        except BenchmarkError as error:  # a hang, for one: the other scenarios go on
            scenario.wrong.append(f"after {scenario.kills} kills: {error}")
        scenario.expect(not processes_naming(str(place)), "processes are left")
    scenario.expect(shared_memory() <= segments, "shared memory is left")
    scenario.seconds = time.monotonic() - began
    said = [name, f"{scenario.kills} kills", f"{len(scenario.wrong)} wrong", f"{scenario.seconds:.0f} s"]
    print("\n".join([", ".join(said), *scenario.wrong]), flush=True)
    return scenario
