"""Ends a process of LuWu at one instant of a run: with this folder in PYTHONPATH, every Python process imports it.

TEST_FAULT is "worker RANK STEP": that worker is killed after the commit of that step was answered and before it reports
the step; or "launcher STEP": the launcher is killed after all reported the step and before it writes the row. Workers
then wait for the answer to each report: a worker that is ahead would commit later steps that nobody writes a row of.
It may be "workers STEP": all workers are killed so.
Or it is "validation RANK STEP PID": that worker kills a process, itself for PID 0, in the validation after that step.
"""

from __future__ import annotations

import contextlib
import os
import signal

from luwu.core import shares
from luwu.launch import reports
from luwu.observe.meter import StepRecord
from luwu.observe.metrics import MetricsLog
from luwu.session.session import Session

count_step, append, even_share = Session.count_step, MetricsLog.append, shares.even_share
fault = os.environ["TEST_FAULT"].split()
if fault[0] == "launcher":
    reports.STEPS_AHEAD = 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


made: list[str] = []  # rank and step after this process's last attempt


def kill_and_share(*arguments: int) -> slice:
    if fault[:3] == ["validation", *made]:
        with contextlib.suppress(ProcessLookupError):  # a server's last step is made again, and comes here again
            os.kill(int(fault[3]) or os.getpid(), signal.SIGKILL)
    return even_share(*arguments)


def count_and_die(session: Session, committed: bool) -> None:
    count_step(session, committed)
    made[:] = str(session.rank), str(session.step)
    if fault in (["worker", *made], ["workers", str(session.step)]):
        die()


def die_or_append(log: MetricsLog, record: StepRecord) -> None:
    if fault == ["launcher", str(record.step)]:
        die()
    append(log, record)


Session.count_step = count_and_die  # type: ignore[method-assign]
shares.even_share = kill_and_share
MetricsLog.append = die_or_append  # type: ignore[method-assign]
