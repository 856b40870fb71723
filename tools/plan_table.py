"""Writes a table of the plans of 8B and 70B on two machines into docs/planning.md, between its two markers.

usage: python tools/plan_table.py
"""

from __future__ import annotations

from figures import ROOT, write_section

from luwu.plan.advice import advise
from luwu.plan.choices import Choices
from luwu.plan.planning import make_plan
from luwu.plan.requests import make_request

BEGIN, END = "<!-- plans: tools/plan_table.py -->", "<!-- end of plans -->"

PAGE = ROOT / "docs" / "planning.md"
SEQUENCE = 2048
MODELS = {"8B": "llama-3.1-8b", "70B": "llama-3.1-70b"}
MACHINES = {
    "RTX 4090": Choices(machine="desktop", gpu="rtx-4090", ram="64GiB", disk="4TB@7GB/s"),
    "H200": Choices(machine="workstation", gpu="h200-141gb-sxm", ram="512GiB", disk="16TB@14GB/s"),
}


def plan_table() -> str:
    """Return the table, worked out by the planner."""
    lines = [
        "| plan | copies, F/B | never below, F/2B | server, F/6R | disk | recommended batch; slices | throughput |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, name in MODELS.items():
        for gpu, machine in MACHINES.items():
            choices = Choices(**{**vars(machine), "model": name, "seq": SEQUENCE})
            lines.append(f"| {model} on an {gpu} | {' | '.join(_cells(choices))} |")
    return "\n".join(lines)


def _cells(choices: Choices) -> list[str]:
    advice = advise(make_plan(make_request(choices)))
    assert advice is not None, f"{choices.model} does not fit {choices.machine}"
    found = advice.thresholds
    tokens = [f"{value:,.0f}" for value in (found.pull, found.average, found.server, found.disk)]
    left = f"{', '.join(advice.exposed)} exposed" if advice.exposed else "all hidden"
    batch = f"{advice.batch} sequences, {advice.tokens:,} tokens: {left}; {advice.micro_batch}"
    return [*tokens, batch, f"{advice.plan.tokens_per_second:,.0f} tokens/s"]


def main() -> None:
    """Write the table between the markers."""
    write_section(PAGE, BEGIN, END, plan_table())


if __name__ == "__main__":
    main()
