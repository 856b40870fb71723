"""Steps of a trace as the run counts them, which began in its store at a later step than the first."""

from __future__ import annotations

import re

import numpy as np

from luwu.control import control_pb2 as pb
from luwu.core.trace import RECORD

_UNTIL = re.compile(r"(?<= until step )\d+")


def count_steps_from(trace: pb.RunTrace, first_step: int) -> None:
    """Change a trace's steps, which are its store's, into those of the run that began in the store at ``first_step``.

    Records that are none are left for `luwu.observe.run_trace.spans_of` to refuse.
    """
    trace.first_step = max(0, trace.first_step - first_step)
    trace.last_step = max(0, trace.last_step - first_step)
    trace.missing[:] = [_UNTIL.sub(lambda step: str(int(step[0]) - first_step), name) for name in trace.missing]
    for process in trace.processes:
        if len(process.records) % RECORD.itemsize == 0:
            records = np.frombuffer(process.records, RECORD).copy()
            records["step"] -= np.uint32(first_step)  # a switch's, which have none, get theirs later
            process.records = records.tobytes()
