"""Models of 8 to 70 billion parameters on one machine, planned; and the largest one that this disk takes, trained.

Planned: the workstation of `luwu plan` with one GPU of 24 GB, 64 or 128 GiB of memory and one to four drives: tokens a
second, bytes written to each drive a day, and the best `durable`. Trained, each planned before as `luwu plan
--measured` does: all parameters of the deepest GPT that this disk takes, in bfloat16 with optimizer states of 8 bits,
which make the store of a parameter the smallest; and adapters of a GPT with some 8 billion frozen parameters, or as
many as this disk takes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.planned_runs import Case, compare, for_this_processor

from luwu.plan.choices import Choices
from luwu.plan.durable_advice import best_of, compare_durables
from luwu.plan.planning import make_plan
from luwu.plan.requests import make_request

NAME = "ten_billion"
BAR = "a step of each real run within 15 % of its plan"
WITHIN = 0.15
MODELS = ("llama-3.1-8b", "opt-30b", "llama-3.1-70b")
MEMORIES = ("64GiB", "128GiB")
DRIVES = (1, 2, 3, 4)
DRIVE_TERABYTES, DRIVE_GIGABYTES_A_SECOND = 4, 7
SEQ, BATCH, MEMORY = 64, 2, "8GiB"
HIDDEN, MOST_LAYERS = 2048, 200
STORE_BYTES = 12.5
"""Bytes in the store for a parameter with AdamW of 8 bits, in bfloat16 or float32: two versions."""
LORA_HIDDEN, LORA_MOST_LAYERS, LORA_RANK = 4096, 40, 16
LORA_STORE_BYTES = 4.4
"""Bytes in the store for a frozen parameter in float32, its share of the adapters included; in bfloat16 a half."""
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


def layers_for(folder: Path, store_bytes: float, hidden: int, most: int) -> int:
    """Layers of a GPT of this width whose store finds room on the folder's disk."""
    room = FREE_SHARE * shutil.disk_usage(folder).free
    return min(most, int(room / (store_bytes * parameters_of(1, hidden))))


def parameters_of(layers: int, hidden: int) -> int:
    """Parameters in the matrices of these layers."""
    return 12 * layers * hidden**2


def largest_cases(folder: Path) -> list[Case]:
    """Return the runs that this disk has room for, one after the other."""
    full = layers_for(folder, STORE_BYTES, HIDDEN, MOST_LAYERS)
    cases = [
        Case("all trained", full, HIDDEN, SEQ, BATCH, 1, "bfloat16", MEMORY, optimizer="adamw8bit"),
        Case("adapters", LORA_MOST_LAYERS, LORA_HIDDEN, SEQ, BATCH, 1, "bfloat16", MEMORY, lora_rank=LORA_RANK),
    ]
    full_case, adapters = map(for_this_processor, cases)
    frozen_bytes = LORA_STORE_BYTES / (2 if adapters.dtype == "bfloat16" else 1)
    layers = layers_for(folder, frozen_bytes, LORA_HIDDEN, LORA_MOST_LAYERS)
    return [full_case, adapters._replace(layers=layers)]


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for real in found["real"]:
        size = f"{real['billion_parameters']:.1f}B parameters, a store of {real['measured']['store'] / 1e9:.0f} GB"
        yield (
            f"a step on this machine, {real['name']}: {size}",
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
    smallest = Case("smallest", 1, 64, 32, 2, 1, "float32", memory="64MiB")
    cases = options.size(None, check=[smallest, smallest._replace(lora_rank=4)])
    models = options.size(MODELS, check=MODELS[:1])
    steps, seconds = options.effort((4, 5.0), check=(1, 0.05))

    def measure() -> dict[str, Any]:
        plans = [planned(model, ram, drives) for model in models for ram in MEMORIES for drives in DRIVES]
        show(plans)
        real = [trained(case, options.folder, steps, seconds) for case in cases or largest_cases(options.folder)]
        worst = max(real, key=lambda each: abs(each["errors"]["seconds"]))
        return result(
            NAME, ours=worst["measured"]["seconds"], peer=worst["predicted"]["seconds"], bar=BAR,
            ok=abs(worst["errors"]["seconds"]) <= WITHIN, unit="seconds a step",
            details={"planned": plans, "real": real},
        )  # fmt: skip

    return run(NAME, BAR, "seconds a step", measure, options)


def trained(case: Case, place: Path, steps: int, seconds: float) -> dict[str, Any]:
    """Plan a run, make it, and print both."""
    with tempfile.TemporaryDirectory(dir=place, prefix="luwu-") as folder:
        real = compare(case, Path(folder), steps, seconds)
    table(
        [real["name"], "predicted", "measured", "error"],
        [[name, real["predicted"][name], real["measured"][name], f"{real['errors'][name]:+.1%}"]
         for name in real["errors"]],
    )  # fmt: skip
    return {**real, "billion_parameters": parameters_of(case.layers, case.hidden) / 1e9}


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
