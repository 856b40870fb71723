"""Checks what workers say to the launcher, in reports and in the last lines of their logs, before it is used.

A worker is a process of its own, and what it prints may stand in its log beside LuWu's lines; a report is a line of
JSON. Text is made printable. Every other field is checked, and an error names a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from luwu.core.errors import LuwuError, WorkerLostError, error_named
from luwu.core.json_fields import MALFORMED, explained, read_object
from luwu.core.quantities import shown
from luwu.launch.job import ERROR_MARK

MOST = 2**63
"""Bound of a count in a report."""

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that a terminal may obey, without tab and the end of a line."""

Check = Callable[[object, str], object]


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} {shown(value)}, which is no text")
    whole = value.encode("utf-8", "backslashreplace").decode()
    return CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", whole)


def _count(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST:
        raise ValueError(f"{name} {shown(value)}, which is no whole number from 0 to {MOST}")
    return value


def _number(value: object, name: str) -> float:
    large = isinstance(value, int) and abs(value) >= MOST
    if not isinstance(value, int | float) or isinstance(value, bool) or large:
        raise ValueError(f"{name} {shown(value)}, which is no number")
    return value


def _time(value: object, name: str) -> float:
    found = _number(value, name)
    if not 0 <= found < 1e11:
        raise ValueError(f"{name} {shown(value)}, which is no time")
    return found


def _positive(value: object, name: str) -> int:
    found = _count(value, name)
    if not found:
        raise ValueError(f"{name} 0, where there is one at least")
    return found


def _truth(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} {shown(value)}, which is neither true nor false")
    return value


def _or_none(check: Check) -> Check:
    return lambda value, name: None if value is None else check(value, name)


def _wait(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, Mapping) or set(value) != {"folder", "needed_bytes", "until"}:
        raise ValueError(f"{name} {shown(value)}, which is no pause")
    return {
        "folder": _text(value["folder"], f"{name}.folder"),
        "needed_bytes": _count(value["needed_bytes"], f"{name}.needed_bytes"),
        "until": _time(value["until"], f"{name}.until"),
    }


def _validation(value: object, name: str) -> list[object]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{name} {shown(value)}, which is no pair")
    return [_number(value[0], f"{name}.0"), _count(value[1], f"{name}.1")]


def _waits(value: object, name: str) -> list[object]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{name} {shown(value)}, which is no pair")
    return [_time(each, f"{name}.{place}") for place, each in enumerate(value)]


_STEP: dict[str, Check] = {
    "attempt": _count, "step": _count, "committed": _truth, "loss": _number, "sequences": _positive, "tokens": _count,
    "lr": _number, "grad_norm": _or_none(_number), "began": _number, "ended": _number, "waited_seconds": _number,
    "busy_seconds": _number, "bytes_pulled": _count, "bytes_pushed": _count,
}  # fmt: skip
_FIELDS: dict[str, dict[str, Check]] = {
    "say": {"text": _text},
    "stage": {"text": _text, "detail": _text},
    "room": {"wait": _or_none(_wait)},
    "error": {"type": _text, "message": _text},
    "start": {"parameters": _count, "step": _count, "attempts": _count, "rolled_back": _count},
    "step": _STEP,
    "stopped": {},
    "fenced": {"rank": _count},
    "validated": {"step": _count, "loss_sum": _number, "sequences": _count},
    "result": {"loss_sum": _number, "sequences": _count, "prompt": _text, "sample": _text},
    "progress": {"done": _number, "total": _number},
}
_MAY_BE_MISSING: dict[str, dict[str, Check]] = {
    "start": {"worker_return_seconds": _number, "first_step": _count},
    "step": {
        "loss_scale": _or_none(_number),
        "validation": _or_none(_validation),
        "data_seconds": _time,
        "waits": _waits,
    },
}


def parse_report(line: str) -> dict[str, Any]:
    """Read one line of a worker; a line that is no report becomes one of the kind `damaged`, which says why."""
    try:
        report = dict(read_object(line))
        return report if isinstance(report["kind"], str) else {"kind": "damaged", "text": "a kind that is no text"}
    except MALFORMED as error:
        return {"kind": "damaged", "text": explained(error)}


def checked_report(rank: int, report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report whose fields are all there and are what they must be.

    Raises:
        WorkerLostError: they are not; names the worker, the report and the field.
    """
    kind = report["kind"]
    where = f"worker {rank}: report of the kind {shown(kind)}"
    if kind not in _FIELDS:
        why = f": {report['text']}" if kind == "damaged" else ""
        raise WorkerLostError(f"{where}: expected one of {', '.join(_FIELDS)}{why}; run luwu train again to resume")
    found = dict(report)
    try:
        for name, check in _FIELDS[kind].items():
            found[name] = check(report[name], name)
        for name, check in _MAY_BE_MISSING.get(kind, {}).items():
            found |= {name: check(report[name], name)} if name in report else {}
    except MALFORMED as error:
        fields = ", ".join(_FIELDS[kind])
        raise WorkerLostError(
            f"{where}: expected {fields}, found {explained(error)}; run luwu train again to resume"
        ) from None
    return found


def typed_error(log: str) -> LuwuError | None:
    """The last typed error in the text of a worker's log; lines that only begin as one does are passed over."""
    for line in reversed(log.splitlines()):
        if not line.startswith(ERROR_MARK):
            continue
        try:
            words = read_object(line.removeprefix(ERROR_MARK))
            return error_named(_text(words["type"], "type"))(_text(words["message"], "message"))
        except MALFORMED:
            continue
    return None
