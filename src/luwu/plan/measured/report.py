"""A plan for this machine in words and numbers: rows for tables, and an object for JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from luwu.core.units import amount, bit_rate_text, bytes_text, count_text, rate_text, seconds_text
from luwu.plan.measured.planning import LocalPlan, command
from luwu.plan.report import Rows, model_json, parameters_text, phase_rows, step_json
from luwu.plan.wear import DAY_SECONDS, Wear
from luwu.probe.link import LinkRates


def sections(
    plan: LocalPlan,
    suggested: LocalPlan,
    store: Path | None,
    tokens: float | None = None,
    link: LinkRates | None = None,
    endurance: int | None = None,
) -> dict[str, Rows]:
    """Return the rows to show, by heading."""
    found = {
        "verdict": _verdict(plan),
        "what was measured": _machine(plan) + (_link(link) if link is not None else []),
        "memory": [(name, bytes_text(value)) for name, value in plan.memory.items()]
        + [("all", f"{bytes_text(plan.memory_bytes)} of {bytes_text(plan.room_bytes)} that are free")],
        "disk": _disk(plan) + _wear(plan, endurance).rows(tokens, _days(plan, tokens)),
        "a step": _step(plan, tokens),
    }
    suggestion = [("command", command(suggested, store) or "a program of your own: docs/fine-tuning.md")]
    if suggested.settings != plan.settings:
        suggestion.append(("which gives", _pace(suggested)))
    if link is not None:
        suggestion.append(("a cluster of such links", f"luwu plan --link {bit_rate_text(link.one_way)} ..."))
    return found | {"suggested": suggestion}


def as_json(
    plan: LocalPlan,
    suggested: LocalPlan,
    store: Path | None,
    tokens: float | None = None,
    link: LinkRates | None = None,
    endurance: int | None = None,
) -> dict[str, Any]:
    """Everything as plain numbers: bytes, seconds, a second."""
    found: dict[str, Any] = {
        "model": model_json(plan.model),
        "settings": plan.settings.model_dump(include={"model", "run", "optimizer"}),
        "machine": _plain(plan),
        "fits": not plan.misses,
        "misses": [asdict(miss) for miss in plan.misses],
        "memory": dict(plan.memory),
        "memory_bytes": plan.memory_bytes,
        "server": asdict(plan.server),
        "disk_bytes": plan.disk_bytes,
        "wear": _wear(plan, endurance).as_json(),
        "step": step_json(plan.step),
        "tokens_per_second": plan.tokens_per_second,
        "suggested": {
            "command": command(suggested, store),
            "tokens_per_second": suggested.tokens_per_second,
            "memory_bytes": suggested.memory_bytes,
        },
    }
    if link is not None:
        found["link"] = asdict(link)
    if tokens is not None:
        found["budget"] = {"tokens": tokens, "days": tokens / plan.tokens_per_second / 86400}
    return found


def _plain(plan: LocalPlan) -> dict[str, Any]:
    machine = {name: value for name, value in vars(plan.machine).items() if name not in ("disk", "kernels", "costs")}
    parts = {"disk": asdict(plan.machine.disk), "costs": asdict(plan.machine.costs)}
    return machine | parts | {"kernels": plan.machine.kernels.model_dump()}


def _verdict(plan: LocalPlan) -> Rows:
    if not plan.misses:
        return [("fits", f"yes; {plan.step.binds} binds"), ("throughput", _pace(plan))]
    return [("fits", "no")] + [(miss.what, str(miss).partition(": ")[2]) for miss in plan.misses]


def _pace(plan: LocalPlan) -> str:
    return f"{plan.tokens_per_second:,.0f} tokens/s, a step {seconds_text(plan.step.seconds)}"


def _machine(plan: LocalPlan) -> Rows:
    machine, disk, kernels = plan.machine, plan.machine.disk, plan.machine.kernels
    way = "past the page cache" if disk.direct else "through the page cache: O_DIRECT is refused here"
    return [
        ("processor", f"{machine.processor}, {machine.processors} cores"),
        ("workers", f"{machine.workers}, {machine.threads} threads each"),
        ("disk", f"reads {rate_text(disk.read_rate)}, writes {rate_text(disk.write_rate)}, {way}"),
        ("disk, as pulls use it", f"reads {rate_text(disk.shared_read_rate)} into memory that processes share"),
        ("disk, as updates use it", f"{rate_text(disk.mixed_rate)} both ways together"),
        ("memory", f"{rate_text(kernels.memory_rate)} copied by each worker"),
        *(
            (f"products of {shape}", f"{amount(rate)}flop/s of each worker, gradients included")
            for shape, rate in kernels.products.items()
        ),
        ("update", f"{amount(machine.update_rate)}parameters/s; from the disk {amount(machine.verified_update_rate)}"),
        ("a step beside all this", seconds_text(machine.costs.fixed_seconds)),
        ("a block", seconds_text(machine.costs.block_seconds)),
    ]


def _link(link: LinkRates) -> Rows:
    there, back, both = (rate_text(rate) for rate in (link.to_rate, link.back_rate, link.both_rate))
    answer = seconds_text(link.answer_seconds)
    return [("link", f"{there} there, {back} back, {both} both ways at once; answers in {answer}")]


def _disk(plan: LocalPlan) -> Rows:
    return [
        (
            "store",
            f"{bytes_text(plan.disk_bytes)} of {bytes_text(plan.disk_room_bytes)}, two versions of what is trained",
        ),
        ("read a step", bytes_text(plan.bytes_read)),
        ("written a step", bytes_text(plan.server.written_bytes)),
    ]


def _wear(plan: LocalPlan, endurance: int | None) -> Wear:
    """Return the wear of the disk, on which all folders of the store are taken to be."""
    return Wear(plan.server.written_bytes, plan.step.seconds, endurance)


def _days(plan: LocalPlan, tokens: float | None) -> float | None:
    return None if tokens is None else tokens / plan.tokens_per_second / DAY_SECONDS


def _step(plan: LocalPlan, tokens: float | None) -> Rows:
    rows = [*phase_rows(plan.step), ("step", _pace(plan))]
    rows.append(("parameters", parameters_text(plan.model)))
    if tokens is not None:
        rows.append((f"{count_text(tokens)} tokens", seconds_text(tokens / plan.tokens_per_second)))
    return rows
