"""50 servers are killed whose standby takes over; and the step time with a standby, beside a server without one.

After each take-over nothing is lost that was told as committed, and in the end losses, parameters and both stores are
those of a run that nobody disturbed. A server that was replaced and starts again must not let a step be made.

The times are those of a worker that takes steps in turn with a server that has a standby, and with one that has none,
both at each step durable. All processes share this machine's processors. The standby's store lies in memory, because a
standby on another machine has another disk. The bytes that went to the standby are counted by the server.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from kit.common import Options, Row, arguments, result, run, table
from kit.kills import work
from kit.kills.course import Scenario
from kit.kills.processes import ending
from kit.kills.standby import Pair, kill_served
from kit.model import ADAMW, batches, build, gpt
from kit.sampling import Bar, compare, in_turn
from torch import nn

import luwu
from luwu.control import control_pb2 as pb
from luwu.control.credentials import find_credentials
from luwu.control.status import ask_status

NAME = "standby"
BAR = "take-over loses nothing committed, 50 of 50; step time within 5 % where the link allows"
UNIT = "seconds a step"
MOST = Bar("with a standby", "without", 1.05, at_least=False)
KILLS = (50, 4, 1)


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    bits = "the undisturbed run's bits" if not found["wrong"] else "**other bits**"
    yield f"{found['kills']} killed servers whose standby takes over", f"{len(found['wrong'])} wrong; {bits}", "-"
    seconds = found["seconds"]
    yield (
        f"step time with a standby, to which {found['bytes a parameter']:.1f} bytes a parameter and step go",
        f"{seconds['with a standby'] * 1e3:.0f} ms",
        f"without {seconds['without'] * 1e3:.0f} ms",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    os.environ["LUWU_JOB_KEY"] = work.KEY

    def measure() -> dict[str, Any]:
        kills = options.size(KILLS[0], quick=KILLS[1], check=KILLS[2])
        scenario = Scenario("standby: server")
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as name:
            kill_served(scenario, Path(name) / "kills", kills)
        cost = _cost(options)
        medians = cost["seconds"]
        table(["side", "seconds a step"], [[name, medians[name]] for name in medians])
        print(f"{scenario.kills} kills, {len(scenario.wrong)} wrong", *scenario.wrong, sep="\n", flush=True)
        details = {
            **cost, "kills": scenario.kills, "resumes": scenario.resumes, "wrong": scenario.wrong,
            "moments": dict(scenario.moments), "slowest take-over": scenario.slowest_notice_seconds,
        }  # fmt: skip
        enough = scenario.kills == kills and scenario.resumes >= kills
        return result(
            NAME, ours=medians["with a standby"], peer=medians["without"], ratio=cost["ratio"], bar=BAR,
            ok=cost["ok"] and enough if cost["ok"] is not None else None, right=not scenario.wrong, unit=UNIT,
            details=details,
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


def _cost(options: Options) -> dict[str, Any]:
    """Measure the step time with and without a standby, and what goes to it."""
    layers, hidden, seq, batch = options.size((4, 256, 256, 4), check=(1, 32, 32, 1))
    shape = {"layers": layers, "hidden": hidden, "heads": 4, "seq": seq}
    with ExitStack() as open_ones:
        scratch = Path(open_ones.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-")))
        memory = open_ones.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="luwu-standby-"))
        pairs = {MOST.over: Pair(scratch / "with", 1), MOST.under: Pair(scratch / "without", 1)}
        for pair in pairs.values():
            open_ones.enter_context(ending(pair.lives))
            pair.start(0)
        followed = pairs[MOST.over]
        followed.stores[1].symlink_to(memory)
        followed.follow(1)
        sides: dict[str, Callable[[], float]] = {}
        for name, pair in pairs.items():
            session = open_ones.enter_context(luwu.connect(pair.urls[0], rank=0, workers=1, key=work.KEY))
            model = luwu.parallelize(build(shape), session, blocks=[gpt.Block])
            sides[name] = partial(_timed, model, luwu.AdamW(model, **ADAMW), batches(batch, seq), session)
            while name == MOST.over and not _standby_of(followed).in_sync:
                sides[name]()
        parameters = sum(value.numel() for value in luwu.full_state_dict(model).values())
        sent, step = _standby_of(followed).bytes, _standby_of(followed).step
        compared = compare(options, in_turn(sides), [MOST], rounds=40)
        now = _standby_of(followed)
    return {
        "seconds": compared.medians, "ratio": compared.ratio(MOST), "ok": compared.ok,
        "compared": compared.details(), "parameters": parameters,
        "bytes a step": (now.bytes - sent) / (now.step - step),
        "bytes a parameter": (now.bytes - sent) / (now.step - step) / parameters,
    }  # fmt: skip


def _standby_of(pair: Pair) -> pb.StandbyStatus:
    return ask_status(pair.urls[0], find_credentials()).standby


def _timed(model: nn.Module, optimizer: Any, found: Iterator[Any], session: Any) -> float:
    """Return the seconds of a step, until it is durable."""
    began = time.perf_counter()
    model(*next(found)).backward()
    optimizer.step()
    optimizer.zero_grad()
    session.wait_durable()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
