"""Plan of a run: whether it fits, what is missing, and its memory, speed and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from luwu.core.durability import EACH_STEP
from luwu.core.errors import ConfigError
from luwu.core.quantities import format_size
from luwu.core.units import bytes_text
from luwu.launch.settings import RunSettings, Settings
from luwu.models.shapes import ModelShape
from luwu.plan.clusters import Cluster
from luwu.plan.compute import Kernels
from luwu.plan.cost import Cost, cost_of
from luwu.plan.durability import CommitSteps, keeps_of
from luwu.plan.luwu_step import Variant, step_time
from luwu.plan.machines import MEBIBYTE, memory_beside_server, whole_mebibytes
from luwu.plan.memory import WorkerMemory, luwu_worker
from luwu.plan.networks import Topology
from luwu.plan.steps import StepTime
from luwu.plan.wear import Wear
from luwu.server.forecast import Forecast, forecast
from luwu.server.settings import ServerSettings

GRADIENT_BYTES = {"int32": 4.0, "float32": 4.0, "int16": 2.0}
"""Bytes of a gradient's element on the wire by `ServerSettings.form`; exponents add less than one part in a hundred."""


@dataclass(frozen=True)
class Request:
    """A run to plan. Of ``settings`` the groups run and optimizer count; ``form``: as `ServerSettings.form`.

    ``form`` empty: gradients travel in the run's dtype, as over TCP. ``leftover_budget``: the memory budget is what one
    machine's other processes leave, and follows the batch.
    """

    model: ModelShape
    cluster: Cluster
    settings: Settings
    form: str = ""
    topology: Topology = "tree"
    prices: Mapping[str, float] = field(default_factory=dict)
    leftover_budget: bool = False

    @property
    def rows(self) -> int:
        """Sequences of a worker in a step."""
        return max(1, self.settings.run.batch // self.settings.run.workers)

    def with_run(self, **changes: object) -> Request:
        """Return the request with other settings of the run."""
        run = RunSettings.model_validate(self.settings.run.model_dump() | changes)
        return replace(self, settings=self.settings.model_copy(update={"run": run}))


@dataclass(frozen=True)
class Miss:
    """A part that does not fit: its name, the missing bytes, and the smallest change that would make it fit."""

    what: str
    excess_bytes: float
    change: str

    def __str__(self) -> str:
        return f"{self.what}: {bytes_text(self.excess_bytes)} too much; {self.change}"


@dataclass(frozen=True)
class Plan:
    """The answer to a request; ``machine`` is the memory of one machine, by use."""

    request: Request
    worker: WorkerMemory
    server: Forecast
    commits: CommitSteps
    cost: Cost
    misses: tuple[Miss, ...]
    machine: Mapping[str, float] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """True if nothing is missing."""
        return not self.misses

    @property
    def step(self) -> StepTime:
        """Mean time of a step."""
        return self.commits.step

    @property
    def disk_bytes(self) -> int:
        """Bytes of all servers' disks."""
        return sum(self.server.file_bytes) * self.request.cluster.servers

    @property
    def wear(self) -> Wear:
        """Wear of each disk of a server."""
        return wear_of(self.request.cluster, self.commits)

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all workers."""
        return self.step.tokens_per_second(self.request.model) * self.request.cluster.workers

    def mfu(self, *, recompute: bool = False) -> float:
        """Model flop utilisation; with recompute, of what the hardware does."""
        peak = self.request.cluster.gpu.peak_flops
        return self.step.utilisation(self.request.model, peak, recompute=recompute)

    def days(self, tokens: float) -> float:
        """Return the days for a budget of tokens."""
        return tokens / self.tokens_per_second / 86400

    def dollars(self, tokens: float) -> float:
        """Return the dollars for a budget of tokens: the machines' share of their life, and electricity."""
        return self.cost.dollars_for(self.days(tokens))

    @property
    def tokens_per_second_and_dollar(self) -> float | None:
        """Throughput for each dollar that the machines cost; None: nothing is bought."""
        return self.tokens_per_second / self.cost.price if self.cost.price else None


def wear_of(cluster: Cluster, commits: CommitSteps) -> Wear:
    """Return the wear of each disk of a server."""
    endurance = cluster.server.disk.endurance_bytes
    return Wear(commits.written_bytes / cluster.server.disks, commits.step.seconds, endurance)


def make_plan(request: Request) -> Plan:
    """Work a request out.

    Raises:
        ConfigError: the cluster is impossible, or the settings do not belong together.
    """
    request.cluster.check()
    model, cluster, run = request.model, request.cluster, request.settings.run
    if run.workers != cluster.workers:
        raise ConfigError(f"run.workers: expected the cluster's {cluster.workers}, found {run.workers}")
    kernels = Kernels(float32=run.dtype == "float32")
    worker = luwu_worker(
        model, request.rows, kernels, micro_batch=run.micro_batch, offload=run.offload is not None,
        checkpoint=run.checkpoint,
    )  # fmt: skip
    server = forecast_servers(request)
    variant = replace(variant_of(request), inputs_bytes=worker.host_bytes, tail=server.tail_share)
    copies = copies_bytes(request, server)
    commits = CommitSteps.of(
        lambda disk: step_time(model, cluster, request.rows, disk, variant), server, run.commit_points,
        follows=copies / server.written_bytes,
    )  # fmt: skip
    wear = wear_of(cluster, commits)
    cost = cost_of(cluster, topology=request.topology, prices=request.prices).with_worn_disks(wear.life_days)
    used = float(server.memory_bytes + copies)
    machine = {"server": used, **memory_beside_server(request)} if cluster.one_machine else {}
    return Plan(request, worker, server, commits, cost, tuple(_misses(request, worker, server)), machine)


def refuse_one_machine(request: Request, what: str) -> None:
    """Refuse what is worked out by the dollar; ConfigError where nothing is bought."""
    if request.cluster.one_machine:
        raise ConfigError(
            f"{what}: expected none beside --machine, which is there already, found {request.cluster.name}; leave it "
            "out, or plan a cluster without --machine"
        )


def refuse_adapters(request: Request, what: str) -> None:
    """Refuse what is worked out for full training alone; ConfigError where the model has adapters."""
    if request.model.lora_rank:
        raise ConfigError(
            f"{what}: expected none beside --lora-rank, for which it is not worked out, found a rank of "
            f"{request.model.lora_rank}; leave one of them out"
        )


def variant_of(request: Request) -> Variant:
    """Return a run's kernels and dtypes, and the bytes of an element on the wire."""
    run = request.settings.run
    kernels = Kernels(float32=run.dtype == "float32")
    element = 4 if kernels.float32 else 2
    return Variant(
        parameter_bytes=element,
        gradient_bytes=GRADIENT_BYTES.get(request.form, element),
        kernels=kernels,
        checkpoint=run.checkpoint,
        micro_batch=run.micro_batch,
        settles=run.commit_points != EACH_STEP,
    )


def forecast_servers(request: Request) -> Forecast:
    """Layout and memory of each server."""
    run = request.settings.run
    return forecast(
        request.model.block_elements(),
        dtype=run.dtype,
        optimizer=request.settings.optimizer.name,
        folders=request.cluster.server.disks,
        memory_bytes=run.memory,
        workers=run.workers,
        servers=request.cluster.servers,
        summed=request.cluster.aggregation in ("switch", "multicast"),
        keeps=keeps_of(run.commit_points, request.cluster.servers),
        adapter_elements=request.model.adapter_elements(),
    )


def copies_bytes(request: Request, server: Forecast) -> int:
    """Return the memory for copies of a commit point that is written while later steps are made.

    One server makes them whose memory keeps everything (native/pipeline/point_writes.h), in what its budget leaves.
    """
    run = request.settings.run
    stays = server.parameters_read_bytes + server.written_between_bytes + server.kept_disk_bytes == 0
    if run.commit_points == EACH_STEP or request.cluster.servers > 1 or not stays:
        return 0
    return min(server.written_bytes, max(0, run.memory - server.memory_bytes))


def default_form(cluster: Cluster) -> str:
    """Return the form of gradients where none is named: over UDP the server's default, over TCP their dtype."""
    return "" if cluster.aggregation in ("none", "memory") else str(ServerSettings.model_fields["form"].default)


def _misses(request: Request, worker: WorkerMemory, server: Forecast) -> list[Miss]:
    cluster, run = request.cluster, request.settings.run
    found = [Miss(what, excess, _smaller_worker(request, what)) for what, excess in worker.misses(cluster)]
    if server.minimum_bytes > run.memory:
        least = format_size(whole_mebibytes(server.minimum_bytes))
        change = f"raise the memory budget to {bytes_text(server.minimum_bytes)} (--memory {least})"
        found.append(Miss("server's memory budget", server.minimum_bytes - run.memory, change))
    needed = max(server.minimum_bytes, run.memory)
    if cluster.one_machine:
        found += _machine_misses(request, server)
    elif needed > cluster.server.memory_bytes:
        found.append(
            Miss(
                "server memory",
                needed - cluster.server.memory_bytes,
                f"take servers of {bytes_text(needed)}"
                + (f", or a budget of {bytes_text(server.minimum_bytes)}" if server.minimum_bytes < run.memory else ""),
            )
        )
    excess = max(server.file_bytes) - cluster.server.disk.capacity_bytes
    if excess > 0:
        disks = -(-sum(server.file_bytes) // int(cluster.server.disk.capacity_bytes))
        change = f"give each server {disks} disks"
        if cluster.one_machine:
            change = f"take a disk of {bytes_text(sum(server.file_bytes))} (--disk SIZE@RATE)"
        found.append(Miss("disk", excess, change))
    return found


def _machine_misses(request: Request, server: Forecast) -> list[Miss]:
    """Compare with one machine's memory; room comes from a smaller budget, a smaller batch, or more memory."""
    ram = request.cluster.host.memory_bytes

    def lacks(batch: Request, budget: int) -> int:
        return int(budget + sum(memory_beside_server(batch).values()) - ram)

    excess = lacks(request, server.memory_bytes)
    if excess <= 0:
        return []
    budget = (server.memory_bytes - excess) // MEBIBYTE * MEBIBYTE
    if budget >= server.minimum_bytes:
        return [Miss("memory", excess, f"lower the server's budget (--memory {format_size(budget)})")]
    least = whole_mebibytes(server.minimum_bytes)
    workers = request.settings.run.workers
    for rows in _halves(request.rows // 2):
        smaller = request.with_run(
            batch=rows * workers, micro_batch=min(rows, request.settings.run.micro_batch or rows)
        )
        if lacks(smaller, least) <= 0:
            change = f"take a smaller batch (--batch {rows * workers})"
            if not request.leftover_budget:
                change += f" and the least budget (--memory {format_size(least)})"
            return [Miss("memory", excess, change)]
    enough = -(-(ram + lacks(request, least)) // 2**30)
    return [Miss("memory", excess, f"take more memory (--ram {enough}GiB)")]


def _smaller_worker(request: Request, what: str) -> str:
    """The smallest change with which a worker fits: fewer rows at once, inputs in the host's memory, another GPU."""
    rows, run, kernels = request.rows, request.settings.run, Kernels(float32=request.settings.run.dtype == "float32")

    def fits(batch: int, micro_batch: int | None, offload: bool) -> bool:
        memory = luwu_worker(
            request.model, batch, kernels, micro_batch=micro_batch, offload=offload, checkpoint=run.checkpoint
        )
        return what not in dict(memory.misses(request.cluster))

    offload = run.offload is not None
    for micro_batch in _halves(min(rows, run.micro_batch or rows)):
        if fits(rows, micro_batch, offload):
            return f"compute {micro_batch} sequences at a time (micro_batch {micro_batch})"
    if not offload and what == "GPU memory" and fits(rows, 1, True):
        return "keep layers' inputs in the host's memory (offload host)"
    for batch in _halves(rows):
        if fits(batch, 1, offload):
            return f"take a batch of {batch * run.workers} ({batch} sequences a worker)"
    least = luwu_worker(request.model, 1, kernels, micro_batch=1, offload=offload, checkpoint=run.checkpoint)
    if what == "host memory":
        return f"give each worker {bytes_text(least.host_bytes)} of host memory"
    return f"take GPUs of {bytes_text(least.gpu_bytes)}, or divide the model's layers into smaller blocks"


def _halves(number: int) -> list[int]:
    found = []
    while number >= 1:
        found.append(number)
        number //= 2
    return found


UNLIMITED = 1 << 60


def fit_budget(request: Request) -> Request:
    """Return the request with the largest budget that there is room and use for, in whole MiB.

    Where there is not even room for the least budget, it is that one, and the plan does not fit.
    """
    room = request.cluster.host.memory_bytes - sum(memory_beside_server(request).values())
    unlimited = request.with_run(memory=UNLIMITED)
    server = forecast_servers(unlimited)
    everything = whole_mebibytes(server.memory_bytes + copies_bytes(unlimited, server))
    budget = min(everything, max(int(room) // MEBIBYTE, 1) * MEBIBYTE)
    least = forecast_servers(request.with_run(memory=budget)).minimum_bytes
    return request.with_run(memory=max(budget, whole_mebibytes(least)))


def with_rows(request: Request, rows: int, micro_batch: int | None) -> Request:
    """Return the request with ``rows`` sequences for each worker; a budget that nobody gave is fitted again."""
    changed = request.with_run(batch=rows * request.cluster.workers, micro_batch=micro_batch)
    return fit_budget(changed) if request.leftover_budget else changed
