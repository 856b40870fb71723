"""A request from a user's choices: presets, and replacements of their parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from luwu.core.errors import ConfigError
from luwu.core.quantities import MOST_TOKENS
from luwu.core.units import parse_bytes, parse_endurance, parse_rate
from luwu.launch.settings import build_settings
from luwu.models.shapes import ModelShape, gpt_shape
from luwu.plan.choices import OF_A_NETWORK, Choices
from luwu.plan.clusters import CLUSTERS, DISKS, Aggregation, Cluster, Disk, Server
from luwu.plan.cost import PRICES
from luwu.plan.gpus import GPUS
from luwu.plan.machines import MACHINES, machine_cluster
from luwu.plan.model_presets import find_model
from luwu.plan.names import find_preset
from luwu.plan.networks import Topology
from luwu.plan.planning import GRADIENT_BYTES, Request, default_form, fit_budget

BYTE_VOCABULARY = 256

NumberT = TypeVar("NumberT", int, float)
TextT = TypeVar("TextT", bound=str)


def make_request(choices: Choices) -> Request:
    """Return the presets with the choices in place.

    Raises:
        ConfigError: a name is not known, a number has no unit, or things do not belong together.
    """
    model = choose_model(choices)
    cluster = choose_machine(choices) if choices.machine is not None else choose_cluster(choices)
    memory = named("memory", parse_bytes, choices.memory) or usual_budget(cluster.server)
    batch = 16 * cluster.workers if choices.batch is None else choices.batch
    if batch < 1 or batch % cluster.workers:
        raise ConfigError(f"batch: expected a multiple of {cluster.workers} workers, found {batch}")
    run: dict[str, object] = {
        "batch": batch,
        "workers": cluster.workers,
        "memory": memory,
        "dtype": choices.dtype,
        "checkpoint": choices.checkpoint,
        "device": "cuda",
        "offload": "host" if choices.offload else None,
        "micro_batch": choices.micro_batch,
        "durable": choices.durable,
    }
    given = {name: value for name, value in run.items() if value is not None}
    settings = build_settings({"run": given, "optimizer": {"name": choices.optimizer}})
    form = default_form(cluster) if choices.form is None else one_of("form", choices.form, (*GRADIENT_BYTES, "dtype"))
    topologies: tuple[Topology, ...] = ("tree", "rack", "fat_tree", "rail_only")
    topology: Topology = one_of("topology", choices.topology or "tree", topologies)
    leftover = cluster.one_machine and choices.memory is None
    request = Request(
        model, cluster, settings, "" if form == "dtype" else form, topology, read_prices(choices.prices), leftover
    )
    return fit_budget(request) if leftover else request


def usual_budget(server: Server) -> int:
    """Return the bytes of a server's memory that are left for the store when its system has a tenth."""
    return int(server.memory_bytes) * 9 // 10


def choose_model(choices: Choices) -> ModelShape:
    """A preset, a folder, or a GPT of layers, hidden and heads."""
    shape = (choices.layers, choices.hidden, choices.heads)
    if choices.model is not None:
        if any(value is not None for value in shape):
            raise ConfigError("model: expected a name or layers, hidden and heads, found both; leave one out")
        model = find_model(choices.model)
    else:
        if choices.layers is None or choices.hidden is None or choices.heads is None:
            raise ConfigError(
                "model: expected --model, or --layers, --hidden and --heads, found "
                f"{', '.join(str(value) for value in shape if value is not None) or 'none'}"
            )
        seq, vocabulary = choices.seq or 1024, choices.vocabulary or BYTE_VOCABULARY
        if not 0 < vocabulary <= MOST_TOKENS:
            raise ConfigError(f"vocabulary: expected 1 to {MOST_TOKENS}, found {vocabulary}")
        build_settings({"model": dict(zip(("layers", "hidden", "heads"), shape, strict=True)) | {"seq": seq}})
        model = gpt_shape(
            choices.layers,
            choices.hidden,
            choices.heads,
            sequence=seq,
            vocabulary=vocabulary,
            biases=False,  # as luwu's own GPT
        )
    if choices.seq is not None:
        if choices.seq < 2:
            raise ConfigError(f"seq: expected at least 2 tokens, found {choices.seq}")
        model = model.with_sequence(choices.seq)
    return model if choices.lora_rank is None else with_adapters(model, choices.lora_rank)


def with_adapters(model: ModelShape, rank: int) -> ModelShape:
    """Return the model with LoRA adapters.

    Raises:
        ConfigError: the rank is none, or not below the width; or the model has experts, whose matrices peft adapts by
            `target_parameters`, which a worker does not take.
    """
    if model.experts > 1:
        raise ConfigError(
            f"lora-rank: expected a model without experts, found {model.name} with {model.experts}; "
            "LuWu has no adapters for them"
        )
    if not 0 < rank < model.hidden:
        raise ConfigError(f"lora-rank: expected 1 to {model.hidden - 1}, less than the model's width, found {rank}")
    return replace(model, lora_rank=rank)


def choose_cluster(choices: Choices) -> Cluster:
    """A preset with another GPU, number, link, server or disks."""
    if choices.ram is not None:
        raise ConfigError(
            f"ram: expected --machine beside it, found {choices.ram!r}; servers of a cluster have --server-memory"
        )
    cluster = find_preset("cluster", choices.cluster, CLUSTERS)
    link = named("link", parse_rate, choices.link)
    server = replace(
        cluster.server,
        link_rate=named("server-link", parse_rate, choices.server_link) or link or cluster.server.link_rate,
        memory_bytes=named("server-memory", parse_bytes, choices.server_memory) or cluster.server.memory_bytes,
        disk=choose_disk(choices, cluster.server.disk),
        disks=cluster.server.disks if choices.disks is None else choices.disks,
    )
    workers = cluster.workers if choices.workers is None else choices.workers
    aggregations: tuple[Aggregation, ...] = ("switch", "multicast", "none")
    changed = replace(
        cluster,
        name=cluster.name if choices.gpu is None else f"{cluster.name} with {choices.gpu}",
        gpu=cluster.gpu if choices.gpu is None else find_preset("gpu", choices.gpu, GPUS),
        workers=workers,
        link_rate=link or cluster.link_rate,
        server=server,
        servers=cluster.servers if choices.servers is None else choices.servers,
        aggregation=one_of("aggregation", choices.aggregation or cluster.aggregation, aggregations),
        host=replace(cluster.host, gpus=max(1, min(cluster.host.gpus, workers))),
    )
    changed.check()
    return changed


def choose_machine(choices: Choices) -> Cluster:
    """A machine's preset with another GPU, number of them, memory or disk.

    Raises:
        ConfigError: a name is not known, or something is given that only a cluster has.
    """
    choices.refuse(
        (OF_A_NETWORK,),
        "beside --machine, where server and workers share memory and a disk, found {found}; leave it out, or plan a "
        "cluster without --machine",
    )
    machine = find_preset("machine", str(choices.machine), MACHINES)
    changed = machine_cluster(
        machine,
        machine.gpu if choices.gpu is None else find_preset("gpu", choices.gpu, GPUS),
        1 if choices.workers is None else choices.workers,
        named("ram", parse_bytes, choices.ram) or int(machine.host.memory_bytes),
    )
    changed = replace(changed, server=replace(changed.server, disk=choose_disk(choices, changed.server.disk)))
    changed.check()
    return changed


def choose_disk(choices: Choices, disk: Disk) -> Disk:
    """A preset, or SIZE@RATE, with another speed or size."""
    if choices.disk is not None:
        size, at, rate = choices.disk.partition("@")
        disk = (
            plain_disk(size, rate)
            if at
            else find_preset("disk", choices.disk, DISKS, also="SIZE@RATE such as 4TB@7GB/s")
        )
    return replace(
        disk,
        read_rate=named("disk-read", parse_rate, choices.disk_read) or disk.read_rate,
        write_rate=named("disk-write", parse_rate, choices.disk_write) or disk.write_rate,
        capacity_bytes=named("disk-size", parse_bytes, choices.disk_size) or disk.capacity_bytes,
        endurance_bytes=named("endurance", parse_endurance, choices.endurance) or disk.endurance_bytes,
    )


def plain_disk(size: str, rate: str) -> Disk:
    """A disk that reads and writes at one rate; ConfigError for a size or a rate without its unit."""
    found = named("disk", parse_rate, rate) or 0.0
    return Disk(f"{size}@{rate}", found, found, named("disk", parse_bytes, size) or 0, 0.0, "as given")


def read_prices(path: Path | None) -> dict[str, float]:
    """Prices by part, from a JSON object; ConfigError for a part that is not known."""
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        prices = {str(name): float(price) for name, price in found.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"prices: expected {path} to be a JSON object of dollars by part, found {error}") from None
    for name in prices:
        find_preset("prices", name, PRICES)
    return prices


def named(name: str, parse: Callable[[object], NumberT], text: str | None) -> NumberT | None:
    """A quantity that may be missing; ConfigError names the setting, and zero is refused."""
    if text is None:
        return None
    try:
        value = parse(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if value <= 0:
        raise ConfigError(f"{name}: expected more than nothing, found {text!r}")
    return value


def one_of(name: str, value: str, known: tuple[TextT, ...]) -> TextT:
    """Return one of a few words; ConfigError lists them."""
    for word in known:
        if word == value:
            return word
    raise ConfigError(f"{name}: expected one of {', '.join(known)}, found {value!r}")
