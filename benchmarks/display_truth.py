"""Compares the figures of a run, on the display and in metrics.jsonl, with what is known without them.

Bytes pulled and pushed come from the model's size, bytes of the store from what the kernel counts of the server's
process but its Python (the store goes past the page cache), times from a clock in the launcher, the loss and the norm
of the gradient from plain torch with the weights that `luwu export` gives, the rest from the settings and the store's
own record.
The hidden share of the communication is compared with the times that the workers report, before the meter keeps it
between 0 and 1; these times must lie within those of the attempt. The validation loss comes from plain torch, too,
and, where the servers are elsewhere, from the end of the run.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.common import BenchmarkError, Row, arguments, result, run, table
from kit.truth import Shape, Truth, plain_loss, plain_validation, pulled_and_pushed, start_servers

from luwu.core.units import bytes_text
from luwu.observe.display import duration
from luwu.observe.meter import RECENT_STEPS
from luwu.observe.metrics import read_metrics

NAME = "display_truth"
BAR = "every figure of every run within 1 % of what is known from outside"
WITHIN = 0.01
OF_A_MOMENT = ("seconds", "tokens/s", "shown tokens/s", "shown left", "shown store written")
"""Figures that a few steps do not decide: clocks of two processes, and bytes not yet on disk when a step is told."""
SMALL = {"layers": 4, "hidden": 128, "heads": 4, "seq": 64, "dropout": 0.0}
LARGE = {"layers": 8, "hidden": 512, "heads": 8, "seq": 64, "dropout": 0.0}
SHAPES = (
    Shape("one worker", SMALL, {"workers": 1, "batch": 16}),
    Shape("two workers, micro-batches, clipping", SMALL, {"workers": 2, "batch": 16, "micro_batch": 2}, clip=0.5),
    Shape("out of core", LARGE, {"workers": 1, "batch": 8, "memory": "128MiB"}),
    Shape("float16, scaled", SMALL, {"workers": 2, "batch": 16, "dtype": "float16"}),
    Shape("two servers over TCP", SMALL, {"workers": 2, "batch": 16}, servers=2),
    Shape("a server over UDP", SMALL, {"workers": 2, "batch": 16}, servers=1, transport="udp"),
)  # fmt: skip


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    rows = found["rows"]
    figures = {name for row in rows for name in row["errors"]}
    yield (
        f"{len(figures)} figures of the display and of metrics.jsonl, in {len(rows)} shapes of runs",
        f"within {max(max(row['errors'].values()) for row in rows):.2%}",
        "what is known from outside",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    shapes = options.size(SHAPES, quick=(SHAPES[1], SHAPES[4]), check=(SHAPES[1],))
    steps = options.effort(150, quick=40, check=12)

    def measure() -> dict[str, Any]:
        found = []
        for shape in shapes:
            with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as scratch:
                errors = errors_of(shape, Path(scratch), steps)
            worst = max(errors, key=lambda name: errors[name])
            print(f"{shape.name}: {len(errors)} figures, worst {worst} {100 * errors[worst]:.3f} %", flush=True)
            found.append({"shape": shape.name, "errors": errors, "worst": worst})
        table(["figure", *(row["shape"] for row in found)], rows_of(found))
        worst_error = max(row["errors"][row["worst"]] for row in found)
        decided = [(name, error) for row in found for name, error in row["errors"].items() if name not in OF_A_MOMENT]
        right = all(error <= WITHIN for _, error in decided)
        return result(
            NAME, ours=worst_error, peer=WITHIN, bar=BAR, ok=worst_error <= WITHIN, right=right,
            unit="worst error of a figure", details={"rows": found, "steps": steps},
        )  # fmt: skip

    return run(NAME, BAR, "worst error of a figure", measure, options)


def rows_of(found: list[dict[str, Any]]) -> list[list[object]]:
    """A row for each figure, a column for each run."""
    names = list(dict.fromkeys(name for row in found for name in row["errors"]))
    return [
        [name, *(f"{100 * row['errors'][name]:.3f} %" if name in row["errors"] else "" for row in found)]
        for name in names
    ]


def errors_of(shape: Shape, scratch: Path, steps: int) -> dict[str, float]:
    """Trains, and gives the relative error of each figure."""
    folder = scratch / "run"
    with start_servers(shape, scratch) as server:
        watched = train(shape, scratch, folder, steps, server)
        rows = read_metrics(folder / "metrics.jsonl")
        truth = Truth.of_run(shape, [*scratch.glob("server-*")] or [folder / "store"], steps)
    errors = errors_of_rows(rows, watched, shape, truth) | errors_of_display(rows, watched, truth)
    if not shape.servers:
        errors |= errors_of_values(shape, scratch, folder, steps)
    return errors


def train(shape: Shape, scratch: Path, folder: Path, steps: int, server: dict[str, str]) -> dict[str, Any]:
    """Run `luwu train` to this step, and return what was noted of it."""
    wanted = {"settings": shape.settings(scratch, steps), "run": str(folder), **server}
    here = Path(__file__).parent
    command = [sys.executable, here / "ours" / "figures.py", json.dumps(wanted)]
    environment = os.environ | {"PYTHONPATH": str(here)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise BenchmarkError(f"{shape.name}: the run failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def errors_of_rows(rows: list[dict[str, Any]], watched: dict[str, Any], shape: Shape, truth: Truth) -> dict[str, float]:
    """Return the errors of metrics.jsonl, without the times of the first steps, in which the run still settles."""
    times = [noted["time"] for noted in watched["steps"]]
    first = min(5, len(rows) // 2)
    elapsed = times[-1] - times[first]
    seconds = sum(row["seconds"] for row in rows[first + 1 :])
    tokens = sum(row["tokens_per_second"] * row["seconds"] for row in rows[first + 1 :])
    committed, expected = 0, []
    for row in rows:
        committed += row["committed"]
        expected.append(committed)
    moved = [pulled_and_pushed(truth, rows, number) for number in range(len(rows))]
    scales = [row["loss_scale"] for row in rows if "loss_scale" in row]
    errors = {
        "step": float([row["step"] for row in rows] != expected or committed != truth.steps),
        "attempt": float([row["attempt"] for row in rows] != list(range(truth.attempts))),
        "rolled back": relative(len(rows) - committed, truth.attempts - truth.steps),
        "tokens": max(relative(row["tokens"], shape.tokens) for row in rows),
        "seconds": relative(seconds, elapsed),
        "tokens/s": relative(tokens / seconds, shape.tokens * (len(rows) - first - 1) / elapsed),
        "pulled": max(relative(row["bytes_pulled"], pulled) for row, (pulled, _) in zip(rows, moved, strict=True)),
        "pushed": max(relative(row["bytes_pushed"], pushed) for row, (_, pushed) in zip(rows, moved, strict=True)),
        "lr": max(relative(row["lr"], shape.rate(row["step"] - row["committed"], truth.steps)) for row in rows),
        "hidden": max(
            error_of_hidden(row["hidden"], [noted["workers"]])
            for row, noted in zip(rows, watched["steps"], strict=True)
        ),
        "validation loss at the end": relative(rows[-1]["validation_loss"], watched["validation_loss"]),
    }  # fmt: skip
    if scales:
        errors["loss scale"] = max(
            relative(scale, 2.0 ** (16 - sum(not row["committed"] for row in rows[:number])))
            for number, scale in enumerate(scales)
        )
    return errors


def error_of_hidden(found: float, attempts: list[list[list[float]]]) -> float:
    """Return the error of a hidden share, by the times of each worker in some attempts.

    It is the largest of three: the distance from the share, and the share of the time by which a worker waited longer
    than data travelled, or data travelled longer than the attempt lasted.
    """
    times = [times for attempt in attempts for times in attempt]
    waited, busy, _ = (sum(column) for column in zip(*times, strict=True))
    beyond = [max(waited - busy, busy - lasted, -waited, 0.0) / lasted for waited, busy, lasted in times]
    return max(abs(found - (1 - waited / busy if busy else 1.0)), *beyond)


def errors_of_display(rows: list[dict[str, Any]], watched: dict[str, Any], truth: Truth) -> dict[str, float]:
    """Return the errors of the display after the last step, and of the time left a step earlier; texts are rounded."""
    last, steps = watched["steps"][-1], watched["steps"]
    recent = min(RECENT_STEPS, len(rows) - 1)
    pace = (last["time"] - steps[-1 - recent]["time"]) / recent
    shown, row = last["shown"], rows[-1]
    middle = steps[-2]
    paced = (middle["time"] - steps[max(0, len(steps) - 2 - RECENT_STEPS)]["time"]) / min(RECENT_STEPS, len(steps) - 2)
    pulled, pushed = pulled_and_pushed(truth, rows, len(rows) - 1)
    hidden = error_of_hidden(
        float(shown["communication hidden"].removesuffix(" %")) / 100,
        [noted["workers"] for noted in steps[-RECENT_STEPS:]],
    )
    errors = {
        "shown tokens/s": relative(last["tokens_per_second"], row["tokens"] / pace),
        "shown left": relative(middle["seconds_left"], paced),
        "shown hidden": max(0.0, hidden - 0.005),  # rounded to a whole percent
        "shown as they are": float(
            (shown["step"], shown["loss"], shown["left"])
            != (f"{truth.steps}/{truth.steps}", f"{row['loss']:.3f}", duration(0))
            or (shown["pulled"], shown["pushed"]) != (bytes_text(pulled), bytes_text(pushed))
            or shown["tokens/s"] != f"{last['tokens_per_second']:,.0f}"
            or shown.get("rolled back", "0") != str(truth.attempts - truth.steps)
            or ("loss_scale" in row and shown["loss scale"] != f"{row['loss_scale']:g}")
        ),
    }
    if last["server"]:
        for name, count in (("store read", "read_bytes"), ("store written", "write_bytes")):
            counted = last["io"][count] - watched["began"][count]
            told = last["server"]["bytes_read" if count == "read_bytes" else "bytes_written"]
            errors[f"shown {name}"] = relative(told, counted)
            errors["shown as they are"] += float(shown[name] != bytes_text(told))
    return errors


def errors_of_values(shape: Shape, scratch: Path, folder: Path, steps: int) -> dict[str, float]:
    """Return the errors of one more step's loss and gradient norm, compared with plain torch from the same weights."""
    exported = scratch / "exported"
    command = [sys.executable, "-m", "luwu.cli", "export", str(exported), "--store", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{shape.name}: the export failed:\n{done.stderr[-2000:]}")
    attempt = len(read_metrics(folder / "metrics.jsonl"))
    loss, norm = plain_loss(shape, scratch, folder, exported, attempt)
    measured = read_metrics(folder / "metrics.jsonl")[-1]["validation_loss"]
    validation = relative(measured, plain_validation(shape, folder, exported))
    train(shape, scratch, folder, steps + 1, {})
    row = read_metrics(folder / "metrics.jsonl")[attempt]
    errors = {"loss": relative(row["loss"], loss), "validation loss": validation}
    if row["grad_norm"] is not None:
        errors["grad norm"] = relative(row["grad_norm"], norm)
    return errors


def relative(found: float, known: float) -> float:
    """Return the relative error of a figure; where the known value is 0, any other value has the error 1."""
    if not math.isfinite(found):
        return math.inf
    return abs(found - known) / abs(known) if known else float(found != 0)


if __name__ == "__main__":
    sys.exit(main())
