"""A layout of tensor, pipeline and data parallelism beside LuWu's plan of the same cluster and batch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from luwu.core.errors import ConfigError
from luwu.core.units import seconds_text
from luwu.plan.hybrid import Replicas, hybrid_step
from luwu.plan.megatron import Parallelism, ParallelStep, parallel_step
from luwu.plan.names import find_preset
from luwu.plan.pipelines import SCHEDULES
from luwu.plan.planning import Plan, refuse_adapters, refuse_one_machine
from luwu.plan.report import Rows
from luwu.plan.steps import StepTime

EXPECTED = "TENSORxPIPELINExDATA such as 8x8x8, or with a schedule such as 8x8x8@zero_bubble"


@dataclass(frozen=True)
class Layout:
    """A layout's predicted steps.

    Attributes:
        how: the numbers of parallelism within a replica.
        replicas: the number of replicas.
        alone: the step as Megatron-LM does it, gradients summed when the pipeline has ended.
        with_luwu: the step with LuWu's servers between replicas.
        sharded: the step with collectives over shards between replicas, beside compute.
        plan: LuWu's plan, which has data parallelism alone.
    """

    how: Parallelism
    replicas: int
    alone: ParallelStep
    with_luwu: StepTime
    sharded: StepTime
    plan: Plan

    @property
    def name(self) -> str:
        """Text of the layout: its numbers as a user gives them, and the schedule."""
        return f"{self.how.tensor}x{self.how.pipeline}x{self.replicas}@{self.how.schedule}"

    def seconds(self) -> dict[str, float]:
        """Predicted seconds of a step of the whole batch, by method."""
        return {
            f"{self.name}, as Megatron-LM": self.alone.seconds,
            f"{self.name}, LuWu between replicas": self.with_luwu.seconds,
            f"{self.name}, sharded between replicas": self.sharded.seconds,
            "LuWu alone, as planned above": self.plan.step.seconds,
        }

    def rows(self) -> Rows:
        """Return names and values as text, for a table."""
        batch = self.plan.request.settings.run.batch
        tokens = batch * self.plan.request.model.sequence
        found = [
            (name, f"{seconds_text(seconds)} a step, {tokens / seconds:,.0f} tokens/s")
            for name, seconds in self.seconds().items()
        ]
        return [*found, ("idle in the pipeline", f"{self.alone.pipeline.bubble:.0%} of a stage's work")]

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain numbers."""
        return {
            "tensor": self.how.tensor,
            "pipeline": self.how.pipeline,
            "data": self.replicas,
            "schedule": self.how.schedule,
            "micro_batch": self.how.micro_batch,
            "seconds": {
                "megatron": self.alone.seconds,
                "luwu_between_replicas": self.with_luwu.seconds,
                "sharded_between_replicas": self.sharded.seconds,
                "luwu_alone": self.plan.step.seconds,
            },
            "bubble": self.alone.pipeline.bubble,
            "flops_per_gpu": self.alone.flops_per_gpu,
        }


def lay_out(plan: Plan, text: str) -> Layout:
    """Compute a layout for the cluster and batch of a plan.

    Args:
        plan: LuWu's plan.
        text: the layout, as `EXPECTED` says; without a schedule, 1F1B.

    Raises:
        ConfigError: the text is no layout, its numbers do not fit the cluster and the batch, or the plan is for one
            machine or of adapters.
    """
    refuse_one_machine(plan.request, "layout")
    refuse_adapters(plan.request, "layout")
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)(?:@(\w+))?", text.strip())
    if match is None or not all(map(int, match.groups()[:3])):
        raise ConfigError(f"layout: expected {EXPECTED}, found {text!r}")
    tensor, pipeline, data = (int(number) for number in match.groups()[:3])
    schedule = find_preset("layout", match[4] or "1f1b", SCHEDULES)
    model, cluster, run = plan.request.model, plan.request.cluster, plan.request.settings.run
    if tensor * pipeline * data != cluster.workers:
        raise ConfigError(
            f"layout: expected tensor x pipeline x data to be the {cluster.workers} workers, found "
            f"{tensor * pipeline * data} of {text}; choose other numbers, or --workers {tensor * pipeline * data}"
        )
    if tensor > cluster.host.gpus:
        raise ConfigError(
            f"layout: expected tensor parallelism over the GPUs of one host, at most {cluster.host.gpus}, found "
            f"{tensor} of {text}; choose a smaller first number, or a --cluster whose hosts have more"
        )
    how = Parallelism(tensor, pipeline, run.micro_batch or 1, schedule.name, schedule.default_parts)
    alone = parallel_step(model, cluster, run.batch, how)
    rows = run.batch // data
    return Layout(
        how,
        data,
        alone,
        hybrid_step(model, cluster, how, Replicas(data, rows, "luwu")),
        hybrid_step(model, cluster, how, Replicas(data, rows, "sharded")),
        plan,
    )
