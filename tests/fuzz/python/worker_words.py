"""Words of a worker to the launcher: reports are refused by their field, and a log's lines are an error or none."""

from __future__ import annotations

import json

from tests.fuzz.python.support import Input, allowing, edited

from luwu.errors import LuwuError, WorkerLostError
from luwu.launch.job import ERROR_MARK
from luwu.launch.reports import reported_error, room_wait
from luwu.launch.words import checked_report, parse_report, typed_error

WAIT = {"folder": "/run", "needed_bytes": 5, "until": 1.5}
REPORTS = (
    {"kind": "say", "text": "x"},
    {"kind": "stage", "text": "x", "detail": "y"},
    {"kind": "room", "wait": WAIT},
    {"kind": "error", "type": "StoreError", "message": "why"},
    {
        "kind": "start", "parameters": 5, "step": 1, "attempts": 2, "rolled_back": 1, "worker_return_seconds": 1.5,
        "first_step": 7,
    },
    {
        "kind": "step", "attempt": 1, "step": 1, "committed": True, "loss": 0.5, "sequences": 2, "tokens": 64,
        "lr": 0.1, "grad_norm": 0.5, "began": 1.5, "ended": 2.5, "waited_seconds": 0.1, "busy_seconds": 0.2,
        "bytes_pulled": 5, "bytes_pushed": 6, "loss_scale": 2.0, "validation": [1.5, 2],
    },
    {"kind": "stopped"},
    {"kind": "result", "loss_sum": 1.5, "sequences": 3, "prompt": "a", "sample": "b"},
    {"kind": "progress", "done": 1, "total": 2.5},
)  # fmt: skip


def test_one_input(data: bytes) -> None:
    given = Input(data)
    how = given.number()
    report = REPORTS[how // 2 % len(REPORTS)]
    line = edited(report, given).decode("utf-8", "replace")
    if how % 2:
        error = typed_error(f"text\n{ERROR_MARK}{line}\n{ERROR_MARK}")
        assert error is None or isinstance(error, LuwuError), "an error is one of ours"
        str(error).encode()
        return
    parsed = parse_report(line)
    found = allowing(WorkerLostError, lambda: checked_report(3, parsed))
    if found is None:
        return
    assert json.dumps(found).encode(), "a report can be written again"
    assert repr(checked_report(3, found)) == repr(found), "a report that was checked is one"
    if found["kind"] == "room":
        wait = room_wait(found)
        assert wait is None or wait.folder.encode() is not None
    elif found["kind"] == "error":
        assert isinstance(reported_error(found), LuwuError), "an error is one of ours"
