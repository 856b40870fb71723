"""Workers' records of their last attempts, and metrics.jsonl, as a crash may leave them: what is whole is used."""

from __future__ import annotations

import json

from tests.fuzz.python.support import Input, edited, scratch

from luwu.launch.last_attempts import read_last_attempts
from luwu.observe.metrics import MetricsLog, read_metrics

RECORD = {
    "attempt": 1, "loss": 0.5, "sequences": 2, "tokens": 64, "lr": 0.1, "loss_scale": None, "workers": 2, "step": 1,
    "bytes_pulled": 5, "bytes_pushed": 6,
}  # fmt: skip
ROW = {"attempt": 0, "step": 1, "committed": True, "loss": 1.5, "lr": 0.1}
SLOT_BYTES = 512


def test_one_input(data: bytes) -> None:
    given = Input(data)
    folder = scratch()
    paths = {rank: folder / f"worker-{rank}" for rank in range(2)}
    count = given.number() % 3
    for path in paths.values():
        slots = [edited(RECORD | {"attempt": attempt}, given) for attempt in range(count)]
        if count:
            path.write_bytes(b"".join(slot.ljust(SLOT_BYTES)[:SLOT_BYTES] for slot in slots))
    metrics = folder / "metrics.jsonl"
    lines = [edited(ROW | {"attempt": attempt}, given) for attempt in range(given.number() % 4)]
    metrics.write_bytes(b"\n".join(lines) + b"\n" * (count % 2))
    noted = read_last_attempts(paths)
    for attempt, records in noted.items():
        assert all(record["attempt"] == attempt for record in records), "records are found under their attempt"
    assert all(isinstance(row["attempt"], int) for row in read_metrics(metrics)), "rows are of attempts"
    log = MetricsLog(metrics)
    log.resume(3, 2, noted)
    log.close()
    rows = read_metrics(metrics)
    assert len(rows) == len(metrics.read_bytes().splitlines()), "what is written again is whole"
    assert [row["attempt"] for row in rows] == sorted(row["attempt"] for row in rows), "rows are in order"
    for row in rows:
        json.dumps(row)
