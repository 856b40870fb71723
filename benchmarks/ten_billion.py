"""Models of 8 to 70 billion parameters on one machine, planned; and the largest one that this disk takes, trained.

Planned: the workstation of `luwu plan` with one GPU of 24 GB, 64 or 128 GiB of memory and one to four drives: tokens a
second, bytes written to each drive a day, and the best `durable`. Trained: a GPT whose store is several times this
machine's memory, as `luwu plan --measured` has it before. It is in float32, because a disk that is full sets the size
and not the dtype.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.planned_runs import Case, compare

from luwu.plan.choices import Choices
from luwu.plan.durable_advice import best_of, compare_durables
from luwu.plan.planning import make_plan
from luwu.plan.requests import make_request

NAME = "ten_billion"
BAR = "a step of the real run within 15 % of its plan"
WITHIN = 0.15
MODELS = ("llama-3.1-8b", "opt-30b", "llama-3.1-70b")
MEMORIES = ("64GiB", "128GiB")
DRIVES = (1, 2, 3, 4)
DRIVE_TERABYTES, DRIVE_GIGABYTES_A_SECOND = 4, 7
HIDDEN, SEQ, BATCH = 2048, 64, 2
MOST_LAYERS = 200
STORE_BYTES = 24
"""Bytes in the store for a parameter in float32 with AdamW: two versions."""
FREE_SHARE = 0.85
"""Share of the free space that the store may take."""


def planned(model: str, ram: str, drives: int) -> dict[str, Any]:
    """Return the figures of a plan; `fits` alone where it does not fit."""
    disk = f"{DRIVE_TERABYTES * drives}TB@{DRIVE_GIGABYTES_A_SECOND * drives}GB/s"
    choices = Choices(model=model, seq=2048, machine="workstation", gpu="rtx-4090", ram=ram, disk=disk)
    plans = compare_durables(make_plan(make_request(choices)))
    if not plans:
        return {"model": model, "ram": ram, "drives": drives, "fits": False}
    best = best_of(plans)
    return {
        "model": model, "ram": ram, "drives": drives, "fits": True,
        "tokens_per_second": best.tokens_per_second, "drive_day_bytes": best.wear.day_bytes / drives,
        "durable": str(best.request.settings.run.durable), "each_step": plans[0].tokens_per_second,
    }  # fmt: skip


def largest_case(folder: Path) -> Case:
    """The deepest GPT of this width whose store finds room on the folder's disk."""
    room = FREE_SHARE * shutil.disk_usage(folder).free
    layers = min(MOST_LAYERS, int(room / (STORE_BYTES * 12 * HIDDEN**2)))
    return Case("the largest", layers, HIDDEN, SEQ, BATCH, 1, "float32", memory="8GiB")


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    real = found["real"]
    size = f"{found['billion_parameters']:.1f}B parameters in float32, a store of {found['store_gb']:.0f} GB"
    yield (
        f"a step of {size}, on this machine",
        f"{real['measured']['seconds']:.1f} s",
        f"its plan: {real['predicted']['seconds']:.1f} s",
    )
    for each in found["planned"]:
        if each["drives"] in (1, 4) and each["ram"] == MEMORIES[-1] and each["fits"]:
            yield (
                f"planned: {each['model']}, {each['ram']}, drives of 7 GB/s: {each['drives']}",
                f'{each["tokens_per_second"]:.0f} tokens/s, --durable "{each["durable"]}"',
                f"every step on the disk: {each['each_step']:.0f}",
            )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    case = options.size(None, check=Case("smallest", 1, 64, 32, 2, 1, "float32", memory="64MiB"))
    models = options.size(MODELS, check=MODELS[:1])
    steps, seconds = options.effort((4, 5.0), check=(1, 0.05))

    def measure() -> dict[str, Any]:
        plans = [planned(model, ram, drives) for model in models for ram in MEMORIES for drives in DRIVES]
        show(plans)
        wanted = case or largest_case(options.folder)
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder:
            real = compare(wanted, Path(folder), steps, seconds)
        parameters = 12 * wanted.layers * wanted.hidden**2
        table(
            ["real run", "predicted", "measured", "error"],
            [[name, real["predicted"][name], real["measured"][name], f"{real['errors'][name]:+.1%}"]
             for name in real["errors"]],
        )  # fmt: skip
        return result(
            NAME, ours=real["measured"]["seconds"], peer=real["predicted"]["seconds"], bar=BAR,
            ok=abs(real["errors"]["seconds"]) <= WITHIN, unit="seconds a step",
            details={
                "planned": plans, "real": real, "billion_parameters": parameters / 1e9,
                "store_gb": real["measured"]["store"] / 1e9,
            },
        )  # fmt: skip

    return run(NAME, BAR, "seconds a step", measure, options)


def show(plans: list[dict[str, Any]]) -> None:
    """Prints the table of the plans."""
    lines = []
    for each in plans:
        head = [each["model"], each["ram"], each["drives"]]
        if not each["fits"]:
            lines.append([*head, "does not fit", "-", "-", "-"])
            continue
        a_day = f"{each['drive_day_bytes'] / 1e12:.1f} TB"
        lines.append([*head, each["tokens_per_second"], each["durable"], each["each_step"], a_day])
    table(["model", "memory", "drives", "tokens/s", "durable", "every step", "written to a drive a day"], lines)


if __name__ == "__main__":
    sys.exit(main())
