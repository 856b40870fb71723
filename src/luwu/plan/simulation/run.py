"""Builds the parts of a simulated run from a plan's request, and plays it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np
import simpy

from luwu.core.division import divide
from luwu.core.errors import ConfigError, MemoryBudgetError
from luwu.core.manifest import DEFAULT_CHUNK_ELEMENTS, ROOT_NAME, BlockManifest, Manifest, element_bytes
from luwu.core.native import StepMachine, block_specs
from luwu.plan.compute import Kernels
from luwu.plan.constants import GOODPUT_SHARE
from luwu.plan.luwu_step import Variant, layer_times
from luwu.plan.planning import GRADIENT_BYTES, Request
from luwu.plan.simulation.lines import Record
from luwu.plan.simulation.scenario import ScenarioChoices
from luwu.plan.simulation.server import ServerSteps, Sizes
from luwu.plan.simulation.tree import Links, Times
from luwu.plan.simulation.workers import BlockSeconds, Workers
from luwu.server.forecast import window_schedule


class Scenario(ScenarioChoices):
    """Conditions of a simulated run."""

    def check(self, workers: int) -> None:
        """Check the conditions of a run with this number of workers; ConfigError names the one that is impossible."""
        if not 0 <= self.stragglers <= workers:
            raise ConfigError(f"stragglers: expected at most the {workers} workers, found {self.stragglers}")
        if not 1 <= self.slowdown < inf:
            raise ConfigError(f"slowdown: expected a factor of at least 1, found {self.slowdown}")
        if self.steps < 1:
            raise ConfigError(f"steps: expected at least 1, found {self.steps}")
        if not 0 <= self.jitter < inf:
            raise ConfigError(f"jitter: expected a deviation such as 0.1, or 0, found {self.jitter}")
        if self.seed < 0:
            raise ConfigError(f"seed: expected a number from 0, found {self.seed}")

    def slowness(self, workers: int, random: np.random.Generator) -> Times:
        """Return for each worker the factor on its usual time, shape [workers]."""
        found = np.exp(random.normal(0.0, self.jitter, workers)) if self.jitter else np.ones(workers)
        found[random.permutation(workers)[: self.stragglers]] *= self.slowdown
        return np.asarray(found, dtype=np.float64)


@dataclass(frozen=True)
class Played:
    """Result of a simulated run: the time of each commit, the busy times, and the tree."""

    request: Request
    scenario: Scenario
    ends: tuple[float, ...]
    record: Record
    links: Links
    tracks: tuple[str, ...] = field(default=())

    @property
    def step_seconds(self) -> float:
        """Seconds of the last step."""
        return self.ends[-1] - self.last_begin

    @property
    def last_begin(self) -> float:
        """Time at which the last step began, in seconds."""
        return self.ends[-2] if len(self.ends) > 1 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all workers, in the last step."""
        run = self.request.settings.run
        return run.batch * self.request.model.sequence / self.step_seconds

    def busy_share(self, track: str) -> float:
        """The part of the last step in which a track was busy."""
        return self.record.busy_seconds(track, self.last_begin) / self.step_seconds


def simulate(request: Request, scenario: Scenario) -> Played:
    """Play a run.

    Raises:
        ConfigError: the cluster or the scenario is impossible, or workers have streams of their own to the server.
        MemoryBudgetError: the servers' budget is below what the model needs.
    """
    cluster = request.cluster
    cluster.check()
    if cluster.aggregation != "switch":
        raise ConfigError(
            f"simulate: expected aggregation by switches, found {cluster.aggregation!r}; plan has the others"
        )
    scenario.check(cluster.workers)
    environment, random = simpy.Environment(), np.random.default_rng(scenario.seed)
    record = Record()
    rate = cluster.link_rate * GOODPUT_SHARE.value
    links = Links(cluster.workers, rate, scenario.fan_in, scenario.loss)
    servers = [_server(request, scenario, number, environment, record) for number in range(cluster.servers)]
    workers = Workers(
        environment,
        servers,
        links,
        _sizes(request, request.model.block_elements()),
        request.model.block_numbers(),
        _seconds(request),
        scenario.slowness(cluster.workers, random),
        random,
        record,
    )
    environment.run(environment.process(workers.run(scenario.steps)))
    tracks = dict.fromkeys(span.track for span in sorted(record.spans, key=lambda span: span.track))
    return Played(request, scenario, tuple(workers.ends), record, links, tuple(tracks))


def _server(
    request: Request, scenario: Scenario, number: int, environment: simpy.Environment, record: Record
) -> ServerSteps:
    run, elements = request.settings.run, request.model.block_elements()
    names = [ROOT_NAME] + [str(block) for block in range(1, len(elements))]
    blocks = tuple(BlockManifest(name, True, (), count) for name, count in zip(names, elements, strict=True))
    whole = Manifest(run.dtype, DEFAULT_CHUNK_ELEMENTS, blocks, request.settings.optimizer.name)
    part = divide(whole, request.cluster.servers).parts[number]
    if len(part.blocks) != len(blocks):
        raise ConfigError(f"servers: expected blocks large enough for all {request.cluster.servers}; use fewer servers")
    try:
        schedule = window_schedule(part, run.memory)
    except MemoryBudgetError as error:
        raise MemoryBudgetError(f"simulate: {error}") from None
    return ServerSteps(
        environment,
        f"server {number + 1}",
        request.cluster.server,
        StepMachine(block_specs(part), request.cluster.workers, request.cluster.servers > 1),
        schedule,
        _sizes(request, [block.elements for block in part.blocks]),
        request.cluster.server.link_rate * GOODPUT_SHARE.value,
        scenario.order,
        record,
    )


def _sizes(request: Request, elements: list[int]) -> Sizes:
    element = element_bytes(request.settings.run.dtype)
    gradient = GRADIENT_BYTES.get(request.form, element)
    return Sizes(
        tuple(float(element * count) for count in elements),
        tuple(float(gradient * count) for count in elements),
        tuple(elements),
    )


def _seconds(request: Request) -> BlockSeconds:
    run = request.settings.run
    kernels = Kernels(float32=run.dtype == "float32")
    variant = Variant(kernels=kernels, checkpoint=run.checkpoint, micro_batch=run.micro_batch)
    layer, head = layer_times(request.model, request.cluster, request.rows, variant)
    again = layer.forward if run.checkpoint else 0.0
    return BlockSeconds(layer.forward, layer.backward + again, head.forward + head.backward)
