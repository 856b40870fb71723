"""LuWu and today's systems on one cluster, each with as many sequences a worker as it has room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from luwu.core.errors import ConfigError
from luwu.core.units import seconds_text
from luwu.models.shapes import ModelShape
from luwu.plan.clusters import Cluster
from luwu.plan.compute import Kernels
from luwu.plan.cost import cost_of
from luwu.plan.memory import peer_worker
from luwu.plan.peers import PEERS, PeerSettings
from luwu.plan.planning import Request, make_plan, refuse_adapters, refuse_one_machine
from luwu.plan.report import step_json
from luwu.plan.steps import StepTime


@dataclass(frozen=True)
class Compared:
    """Step of one system; None where the system does not fit, with the reason."""

    system: str
    model: ModelShape
    cluster: Cluster
    step: StepTime | None
    price: float
    reason: str = ""

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all workers; 0 where the system does not fit."""
        return 0.0 if self.step is None else self.step.tokens_per_second(self.model) * self.cluster.workers

    def cells(self) -> tuple[str, ...]:
        """A row of a table."""
        if self.step is None:
            return (self.system, "-", "-", "-", "-", self.reason)
        rate = self.tokens_per_second
        return (
            self.system,
            str(self.step.rows),
            seconds_text(self.step.seconds),
            f"{rate:,.0f}",
            f"{rate / self.price:.3g}",
            self.step.binds,
        )

    def as_json(self) -> dict[str, Any]:
        """The same as an object."""
        if self.step is None:
            return {"system": self.system, "fits": False, "reason": self.reason}
        return {
            "fits": True,
            **step_json(self.step),
            "tokens_per_second": self.tokens_per_second,
            "dollars": self.price,
            "tokens_per_second_and_dollar": self.tokens_per_second / self.price,
        }


def compare(request: Request) -> list[Compared]:
    """LuWu first, then every peer. A peer's batch is its largest of whole halves of the request's that fits.

    Raises:
        ConfigError: the request is for one machine, or the model has adapters.
    """
    refuse_one_machine(request, "peers")
    refuse_adapters(request, "peers")
    plan = make_plan(request)
    model, cluster = request.model, request.cluster
    found = [Compared("luwu", model, cluster, plan.step, plan.cost.price)]
    for system in PEERS:
        cost = cost_of(
            cluster, with_servers=system == "parameter_server", topology=_wiring(system), prices=request.prices
        )
        try:
            step, reason = peer_step(system, model, cluster, request.rows), ""
        except ConfigError as error:
            step, reason = None, str(error)
        found.append(Compared(system, model, cluster, step, cost.price, reason))
    return found


def peer_step(
    system: str, model: ModelShape, cluster: Cluster, rows: int, settings: PeerSettings | None = None
) -> StepTime:
    """A peer's step with the most rows, of ``rows``, half of them and so on, that it has memory for.

    Raises:
        ConfigError: not even one sequence fits; says what is missing.
    """
    settings = settings or PeerSettings(algorithm="switch" if system == "replicated" else "ring")
    fitting = peer_rows(system, model, cluster, rows, settings.kernels)
    if fitting is None:
        what, excess = peer_worker(system, model, cluster, 1, settings.kernels).misses(cluster)[0]
        raise ConfigError(f"{what} lacks {excess / 1e9:.1f} GB")
    return PEERS[system](model, cluster, fitting, settings)


def peer_rows(system: str, model: ModelShape, cluster: Cluster, rows: int, kernels: Kernels) -> int | None:
    """The most sequences of ``rows``, half of them and so on, that a peer's worker has memory for; None: not one."""
    while rows >= 1:
        if not peer_worker(system, model, cluster, rows, kernels).misses(cluster):
            return rows
        rows //= 2
    return None


def _wiring(system: str) -> Any:
    """Return the network of a system: full bandwidth for collectives between workers, a tree for sums on the way."""
    return "tree" if system in ("replicated", "parameter_server") else "fat_tree"
