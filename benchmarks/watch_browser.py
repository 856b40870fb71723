"""The page of `luwu watch` in a real browser: a live run's figures beside its metrics.jsonl, a long run, many workers.

Headless Chromium opens the page. Figures of a run of `luwu train` are read from it in one moment, and compared with the
row of the same step. axe-core checks accessibility; pictures of a phone's and a desk's width are kept in build/watch.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kit import browser
from kit.common import ROOT, Row, arguments, result, run, table
from kit.watching import Watch

from luwu.control import control_pb2 as pb
from luwu.control.frames import SOCKET_NAME
from luwu.control.local_client import LocalClient
from luwu.observe.metrics import read_metrics
from luwu.server.server import LocalServer

NAME = "watch_browser"
BAR = (
    "in headless Chromium: 12 named things on the page of a live run are there, change, and equal metrics.jsonl; a run "
    "of 100,000 steps opens in under 1 s; 50 workers drawn; axe-core without a serious finding; pictures"
)
UNIT = "seconds"
MOST_SECONDS = 1.0
WORKERS = 50
PICTURES = ROOT / "build" / "watch"
PHONE, DESK = 390, 1280
UNKNOWN = "\N{EN DASH}"
SERIOUS = ("serious", "critical")

NUMBERS = (
    "step", "loss", "validation loss", "gradient norm", "learning rate", "tokens a second", "seconds a step",
    "communication hidden", "time left", "last on the disk", "since it came there", "rolled back",
)  # fmt: skip
"""Named figures of the page."""

READ = """(() => Object.fromEntries([...document.querySelectorAll("#numbers div")].map(
  (row) => [row.dataset.name, row.querySelector("dd").textContent])))()"""
DRAWN = "document.querySelectorAll('#charts canvas').length >= 4 && document.title !== 'LuWu'"


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    yield (
        f"time in which the page of a run of {found['long_steps']:,} steps is drawn in Chromium",
        f"{found['open_seconds']:.2f} s",
        f"{MOST_SECONDS:.0f} s",
    )
    yield (
        f"named figures of a live run's page that are those of metrics.jsonl, of {len(NUMBERS)}",
        f"{found['equal']}",
        f"{len(NUMBERS)}",
    )


def open_page(chrome: Any, watch: Watch) -> float:
    """Open a page, and return the seconds until its curves are drawn."""
    chrome.get(watch.url)
    browser.wait_until(chrome, DRAWN)
    return float(chrome.execute_script("return performance.now()")) / 1000


def shown(value: float | None, digits: int = 4) -> str:
    """Return a figure as the page writes it."""
    if value is None:
        return UNKNOWN
    return f"{float(f'{value:.{digits}g}'):g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2e}"


def expected(metrics: Path, texts: Mapping[str, str]) -> dict[str, bool]:
    """Return, for each figure of the page, whether it is that of metrics.jsonl at the step of the page's loss."""
    every = read_metrics(metrics)
    last = next(row for row in reversed(every) if shown(row["loss"]) == texts["loss"])
    recent = every[: every.index(last) + 1][-20:]
    validated = [row["validation_loss"] for row in every if row.get("validation_loss") is not None]
    step, steps = (int(word.replace(",", "")) for word in texts["step"].split(" of "))

    seconds = sum(row["seconds"] for row in recent)
    speed = sum(row["tokens"] for row in recent) / seconds
    hidden = sum(row["hidden"] * row["seconds"] for row in recent) / seconds

    return {
        "step": last["step"] <= step <= last["step"] + 20 and steps == 100_000,
        "loss": True,  # by which the row was found
        "validation loss": texts["validation loss"] in {shown(loss) for loss in validated},
        "gradient norm": texts["gradient norm"] == shown(last["grad_norm"]),
        "learning rate": float(texts["learning rate"]) == float(shown(last["lr"])),
        "tokens a second": texts["tokens a second"] == f"{round(speed):,}",
        "seconds a step": abs(float(texts["seconds a step"].split()[0]) - seconds / len(recent)) < 0.06,
        "communication hidden": abs(int(texts["communication hidden"].split()[0]) - 100 * hidden) <= 0.51,
        "time left": texts["time left"] != UNKNOWN,
        "last on the disk": last["step"] - 2 <= int(texts["last on the disk"].split()[1].replace(",", "")) <= step,
        "since it came there": texts["since it came there"].endswith(" s"),
        "rolled back": texts["rolled back"] == "0",
    }


def look_at_live_run(chrome: Any, folder: Path) -> dict[str, Any]:
    """Train beside a page, and return which figures are there, equal and change."""
    metrics = folder / "metrics.jsonl"
    command = [
        sys.executable, "-m", "luwu.cli", "train", "--run", str(folder), "--steps", "100000", "--layers", "4",
        "--hidden", "64", "--eval-every", "10", "--max-grad-norm", "1", "--workers", "2",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as training:
        try:
            while not metrics.exists() or len(read_metrics(metrics)) < 30:
                time.sleep(0.1)
            with Watch([folder]) as watch:
                open_page(chrome, watch)
                first = dict(browser.wait_until(chrome, READ))
                equal = expected(metrics, first)
                step = json.dumps(first["step"])
                browser.wait_until(chrome, f"{READ}.step !== {step} && {READ}.loss !== {json.dumps(first['loss'])}")
                second = dict(browser.wait_until(chrome, READ))
                findings = browser.accessibility(chrome)
                parts = chrome.execute_script(
                    "return [document.querySelectorAll('#blocks li').length, "
                    "document.querySelectorAll('#workers tr').length, document.querySelectorAll('#disks tr').length]"
                )
                browser.picture(chrome, PICTURES / "live-desk.png", DESK)
                browser.picture(chrome, PICTURES / "live-phone.png", PHONE, dark=True)
                findings += browser.accessibility(chrome)  # a phone's, in the dark
                wide = chrome.execute_script("return document.documentElement.scrollWidth")
                errors = [each["message"] for each in chrome.get_log("browser") if each["level"] == "SEVERE"]
        finally:
            training.terminate()
            training.wait(120)
    changed = [name for name in NUMBERS if first.get(name) != second.get(name)]
    return {
        "there": [name for name in NUMBERS if name in first],
        "not_equal": [name for name, right in equal.items() if not right],
        "changed": changed,
        "first": first,
        "blocks, workers, disks": parts,
        "accessibility": findings,
        "errors": errors,
        "phone_width": wide,
    }


def write_long_run(folder: Path, steps: int) -> None:
    """Write the metrics.jsonl of a run of many steps, as `luwu train` would."""
    generator = random.Random(0)
    folder.mkdir()
    with (folder / "metrics.jsonl").open("w") as file:
        for attempt in range(steps):
            row = {
                "step": attempt + 1, "attempt": attempt, "committed": True,
                "loss": 2 + 3 / (1 + attempt / 500) + generator.gauss(0, 0.05), "lr": 1e-3,
                "grad_norm": 1 + generator.random(), "tokens": 2048, "seconds": 0.5 + 0.1 * generator.random(),
                "tokens_per_second": 4000 + 500 * generator.random(), "hidden": 0.9, "bytes_pulled": attempt,
                "bytes_pushed": attempt,
            }  # fmt: skip
            if attempt % 1000 == 999:
                row["validation_loss"] = 2.1
            file.write(json.dumps(row) + "\n")


def open_long_run(chrome: Any, folder: Path, steps: int) -> float:
    """Return the seconds until the page of a run of many steps is drawn, once `luwu watch` is up."""
    write_long_run(folder, steps)
    with Watch([folder]) as watch:
        next(record for record in watch.records() if record["rows"]["step"])  # all of it is read
        seconds = min(open_page(chrome, watch) for _ in range(3))
        browser.picture(chrome, PICTURES / "long-desk.png", DESK, dark=True)
    return seconds


def draw_workers(chrome: Any, folder: Path) -> int:
    """Return the number of workers that the page draws of a run with fifty, which have joined."""
    with LocalServer(folder, None, 64 << 20, WORKERS), ExitStack() as joined:
        for rank in range(WORKERS):
            client = LocalClient(folder / SOCKET_NAME, connect_seconds=60.0, answer_seconds=60.0)
            joined.callback(client.close)
            client.call("JoinWorker", pb.JoinWorkerRequest(rank=rank, workers=WORKERS))
        with Watch([folder]) as watch:
            chrome.get(watch.url)
            browser.wait_until(chrome, "document.querySelectorAll('#workers tr').length > 0")
            browser.picture(chrome, PICTURES / "workers-phone.png", PHONE)
            return int(chrome.execute_script("return document.querySelectorAll('#workers tr').length"))


def main() -> int:
    """Looks, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    steps = options.size(100_000, check=2_000)

    def measure() -> dict[str, Any]:
        PICTURES.mkdir(parents=True, exist_ok=True)
        folder = options.folder / NAME
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with browser.browser() as chrome:
            live = look_at_live_run(chrome, folder / "live")
            seconds = open_long_run(chrome, folder / "long", steps)
            drawn = draw_workers(chrome, folder / "workers")
        shutil.rmtree(folder)
        serious = [each for each in live["accessibility"] if each["impact"] in SERIOUS]
        equal = len(NUMBERS) - len(live["not_equal"])
        table(
            ["what", "found"],
            [
                ["named figures", len(live["there"])], ["equal to metrics.jsonl", equal],
                ["that changed", len(live["changed"])], ["seconds to open", seconds], ["workers drawn", drawn],
                ["serious findings", len(serious)], ["errors of the page", len(live["errors"])],
            ],
        )  # fmt: skip
        right = (
            len(live["there"]) == equal == len(NUMBERS) and drawn == WORKERS and not serious and not live["errors"]
            and len(live["changed"]) >= 6 and live["phone_width"] <= PHONE and all(live["blocks, workers, disks"][:2])
        )  # fmt: skip
        details = {"open_seconds": seconds, "long_steps": steps, "equal": equal, "workers": drawn, "live": live}
        return result(
            NAME, ours=seconds, peer=None, bar=BAR, ok=seconds < MOST_SECONDS and right, right=right, unit=UNIT,
            details=details,
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
