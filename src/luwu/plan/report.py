"""A plan in words and numbers: rows for a table, and an object for JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from luwu.core.quantities import format_size
from luwu.core.units import bytes_text, count_text, rate_text, seconds_text
from luwu.core.words import counted
from luwu.models.shapes import ModelShape
from luwu.plan.advice import Advice, advise, offload_shares, thresholds_of, tokens_of
from luwu.plan.clusters import Cluster
from luwu.plan.cost import LIFETIME_YEARS
from luwu.plan.durable_advice import best_of, compare_durables, crash_seconds, durable_rows
from luwu.plan.planning import Plan, copies_bytes
from luwu.plan.steps import StepTime

Rows = list[tuple[str, str]]

HIDDEN = "From this many tokens a step per worker the copies, the server and the disk are hidden"


def sections(plan: Plan, tokens: float | None = None) -> dict[str, Rows]:
    """Return the rows to show, by heading: names and values as text."""
    found = {
        "verdict": _verdict(plan),
        "what is planned": _inputs(plan),
        "a worker's GPU": _memory(plan.worker.gpu, plan.request.cluster.gpu.memory_bytes),
    }
    host = plan.request.cluster.host
    if plan.machine:
        found["the machine's memory"] = _machine(plan)
    elif plan.worker.host:
        found["a worker's host"] = _memory(plan.worker.host, host.memory_bytes / host.gpus)
    found |= {
        "the server" if plan.machine else "each server": _server(plan),
        "a step": _step(plan),
        HIDDEN: _hidden(plan),
        "bytes a step": _links(plan),
        "wear of each disk": plan.wear.rows(tokens, None if tokens is None else plan.days(tokens)),
        **({"how often steps go to the disk (--durable)": rows} if (rows := durable_rows(plan)) else {}),
        "cost": _cost(plan, tokens),
    }
    return found


def model_json(model: ModelShape) -> dict[str, Any]:
    """Return a model's shape and its numbers of parameters."""
    return asdict(model) | {"parameters": model.parameters, "trained_parameters": model.trained_parameters}


def as_json(plan: Plan, tokens: float | None = None) -> dict[str, Any]:
    """Everything as plain numbers: bytes, seconds, dollars, watts."""
    request, step = plan.request, plan.step
    found: dict[str, Any] = {
        "model": model_json(request.model),
        "cluster": asdict(request.cluster),
        "settings": request.settings.model_dump(include={"run", "optimizer"}),
        "fits": plan.fits,
        "misses": [asdict(miss) for miss in plan.misses],
        "worker": {"gpu_bytes": dict(plan.worker.gpu), "host_bytes": dict(plan.worker.host)},
        "server": asdict(plan.server),
        "machine_bytes": dict(plan.machine),
        "disk_bytes": plan.disk_bytes,
        "step": step_json(step),
        "hidden_from_tokens": asdict(thresholds_of(plan)) | thresholds_of(plan).parts,
        "recommended": _advice_json(advise(plan)),
        "wear": plan.wear.as_json(),
        "durable": _durable_json(plan),
        "tokens_per_second": plan.tokens_per_second,
        "mfu": plan.mfu(),
        "mfu_with_recompute": plan.mfu(recompute=True),
        "cost": {"dollars": plan.cost.price, "parts": dict(plan.cost.parts), "watts": plan.cost.watts},
        "tokens_per_second_and_dollar": plan.tokens_per_second_and_dollar,
        "tokens_per_joule": plan.tokens_per_second / plan.cost.watts,
    }
    if tokens is not None:
        found["budget"] = {"tokens": tokens, "days": plan.days(tokens), "dollars": plan.dollars(tokens)}
    return found


def _advice_json(advice: Advice | None) -> dict[str, Any] | None:
    if advice is None:
        return None
    return {
        "batch": advice.batch,
        "micro_batch": advice.micro_batch,
        "memory": advice.plan.request.settings.run.memory,
        "tokens": advice.tokens,
        "hidden_from_tokens": advice.thresholds.parts,
        "exposed": advice.exposed,
        "bottleneck": advice.bottleneck,
        "tokens_per_second": advice.plan.tokens_per_second,
    }


def step_json(step: StepTime) -> dict[str, Any]:
    """A step's phases and parts, in seconds, and its bytes."""
    return {
        "system": step.system,
        "rows": step.rows,
        "seconds": step.seconds,
        "binds": step.binds,
        "hidden_share": step.hidden_share,
        "phases": [{"name": phase.name, "seconds": phase.seconds, "parts": dict(phase.parts)} for phase in step.phases],
        "link_bytes": dict(step.link_bytes),
    }


def _durable_json(plan: Plan) -> dict[str, Any]:
    plans = compare_durables(plan)
    return {
        "compared": [
            {
                "durable": each.request.settings.run.durable,
                "tokens_per_second": each.tokens_per_second,
                "day_bytes": each.wear.day_bytes,
                "crash_seconds": None if math.isinf(crash_seconds(each)) else crash_seconds(each),
                "point_seconds": each.commits.point.seconds,
            }
            for each in plans
        ],
        "recommended": best_of(plans).request.settings.run.durable if plans else None,
    }


def parameters_text(model: ModelShape) -> str:
    """Return the number of parameters in words, and of them that of the adapters."""
    words = f"{count_text(model.parameters)} parameters"
    if not model.lora_rank:
        return words
    return f"{words}, of them {count_text(model.trained_parameters)} in adapters of rank {model.lora_rank}"


def _verdict(plan: Plan) -> Rows:
    if plan.fits:
        return [("fits", f"yes; {plan.step.binds} binds")]
    return [("fits", "no")] + [(miss.what, str(miss).partition(": ")[2]) for miss in plan.misses]


def _inputs(plan: Plan) -> Rows:
    model, cluster, run = plan.request.model, plan.request.cluster, plan.request.settings.run
    batch = (
        "batch",
        f"{run.batch} sequences of {model.sequence} tokens, {plan.request.rows} a worker"
        + (f", {run.micro_batch} at a time" if run.micro_batch else ""),
    )
    name = f"{model.name}: {parameters_text(model)}, {model.layers} layers of {model.hidden}"
    if plan.machine:
        return [("model", name), ("machine", _shared(cluster)), batch]
    helped = {"switch": "switches add up and copy", "multicast": "IP multicast copies", "none": "nothing between"}
    return [
        ("model", name),
        (
            "workers",
            f"{cluster.workers} x {cluster.gpu.name} at {rate_text(cluster.link_rate)}; {helped[cluster.aggregation]}",
        ),
        (
            "servers",
            f"{cluster.servers} x {counted(cluster.server.disks, 'disk')} ({cluster.server.disk.name}), "
            f"{bytes_text(cluster.server.memory_bytes)} memory, {rate_text(cluster.server.link_rate)}",
        ),
        batch,
    ]


def _shared(cluster: Cluster) -> str:
    disk = cluster.server.disk
    return (
        f"{cluster.workers} x {cluster.gpu.name} at {rate_text(cluster.gpu.host_rate)} each way; "
        f"{bytes_text(cluster.host.memory_bytes)} memory and a disk of {bytes_text(disk.capacity_bytes)} at "
        f"{rate_text(disk.read_rate)}, which server and {'worker' if cluster.workers == 1 else 'workers'} share"
    )


def _machine(plan: Plan) -> Rows:
    """List the uses of the memory; pinned parts of the server's, which copies need, are in its budget."""
    pinned = plan.server.window_bytes + plan.server.arena_bytes
    rows = _memory(plan.machine, plan.request.cluster.host.memory_bytes)
    return [*rows, ("of the server's, pinned", f"{bytes_text(pinned)}: parameters and gradients, for the copies")]


def _hidden(plan: Plan) -> Rows:
    found, tokens = thresholds_of(plan), tokens_of(plan)
    exposed = found.exposed(tokens)
    copies = f"{found.pull:,.0f} in forward, {found.backward:,.0f} in backward; "
    copies += f"below {found.average:,.0f} no order of copies is enough"
    rows = [
        ("copies", copies),
        ("server", f"{found.server:,.0f}"),
        ("disk", f"{found.disk:,.0f}"),
        ("all of it", f"{found.everything:,.0f}; {found.bottleneck} needs the most"),
        ("this plan", f"{tokens:,} tokens: " + (f"not hidden: {', '.join(exposed)}" if exposed else "all hidden")),
    ]
    if plan.worker.host:
        ratio, least = offload_shares(plan)
        verdict = "hidden" if ratio >= least else "not hidden"
        rows.append(("layers' inputs", f"{verdict}: parameters are {ratio:,.0f} times the width, needed {least:,.0f}"))
    rows.append(("recommended", _recommended(advise(plan))))
    return [*rows, ("source", "a plan from data sheets and published rates; none of it is a measurement of LuWu")]


def _recommended(advice: Advice | None) -> str:
    if advice is None:
        return "none: no batch fits with these settings"
    request = advice.plan.request
    memory = f" --memory {format_size(request.settings.run.memory)}" if request.leftover_budget else ""
    hidden = f"{', '.join(advice.exposed)} not hidden, no larger batch fits" if advice.exposed else "all hidden"
    return (
        f"--batch {advice.batch} --micro-batch {advice.micro_batch}{memory}: {advice.tokens:,} tokens, {hidden}; "
        f"{advice.bottleneck} needs the most; {advice.plan.tokens_per_second:,.0f} tokens/s planned"
    )


def _memory(parts: Any, room: float) -> Rows:
    rows = [(name, bytes_text(value)) for name, value in parts.items()]
    total = sum(parts.values())
    return [*rows, ("all", f"{bytes_text(total)} of {bytes_text(room)}, {total / room:.0%}")]


def _server(plan: Plan) -> Rows:
    server = plan.server
    copies = copies_bytes(plan.request, server)
    used = bytes_text(server.memory_bytes + copies)
    return [
        ("parameters in memory", bytes_text(server.window_bytes)),
        ("states in memory", bytes_text(server.pinned_state_bytes)),
        ("states on their way", bytes_text(server.state_buffer_bytes)),
        ("gradients", bytes_text(server.arena_bytes)),
        *([("gradients that are kept", bytes_text(server.kept_bytes))] if server.kept_bytes else []),
        *([("copies of a commit point", bytes_text(copies))] if copies else []),
        ("memory", f"{used} of a budget of {bytes_text(plan.request.settings.run.memory)}"),
        ("least budget", bytes_text(server.minimum_bytes)),
        ("disk", f"{bytes_text(sum(server.file_bytes))}, two versions of what is trained"),
    ]


def phase_rows(step: StepTime) -> Rows:
    """Return a step's phases with their parts."""
    rows = []
    for phase in step.phases:
        parts = ", ".join(f"{name} {seconds_text(value)}" for name, value in phase.parts.items() if value > 0)
        rows.append((phase.name, seconds_text(phase.seconds) + (f": {parts}" if parts else "")))
    return rows


def _step(plan: Plan) -> Rows:
    step = plan.step
    return [
        *phase_rows(step),
        ("step", f"{seconds_text(step.seconds)}; {step.hidden_share:.0%} of traffic and disk work is hidden"),
        (
            "throughput",
            f"{plan.tokens_per_second:,.0f} tokens/s, {step.tokens_per_second(plan.request.model):,.0f} a worker",
        ),
        ("MFU", f"{plan.mfu():.1%}; {plan.mfu(recompute=True):.1%} counting the recompute"),
    ]


def _links(plan: Plan) -> Rows:
    server = plan.server
    read = 2 * server.parameters_read_bytes + server.states_read_bytes + server.kept_disk_bytes
    rows = [(name, bytes_text(value)) for name, value in plan.step.link_bytes.items()]
    return [*rows, ("disks, read", bytes_text(read)), ("disks, written", bytes_text(plan.commits.written_bytes))]


def _cost(plan: Plan, tokens: float | None) -> Rows:
    dollar, kilowatts = plan.tokens_per_second_and_dollar, plan.cost.watts / 1000
    rows = [(name, f"${price:,.0f}") for name, price in plan.cost.parts.items()]
    if plan.cost.disk_sets > 1:
        often = f"bought {plan.cost.disk_sets:,.1f} times in {LIFETIME_YEARS} years"
        rows = [(name, f"{value}, {often}" if name == "disks" else value) for name, value in rows]
    if dollar is None:
        rows.append(("machine", f"nothing is bought; {kilowatts:.2g} kW"))
    else:
        rows.append(("machines", f"${plan.cost.price:,.0f}, {kilowatts:.1f} kW"))
        rows.append(("a dollar gives", f"{dollar:.3g} tokens/s"))
    rows.append(("a joule gives", f"{plan.tokens_per_second / plan.cost.watts:.3g} tokens"))
    if tokens is not None:
        time, paid = seconds_text(86400 * plan.days(tokens)), "power" if dollar is None else "machine life and power"
        rows.append((f"{count_text(tokens)} tokens", f"{time}, ${plan.dollars(tokens):,.0f} of {paid}"))
    return rows
