"""Choices of a user of `luwu plan` and `luwu simulate`; each is declared here alone, and its flag comes from here.

Choices with a unit are text; None: the preset's. A choice that does not fit a single machine, or this machine, is
marked so, and refused there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from luwu.core.errors import ConfigError
from luwu.core.settings import Flag, Group

OF_A_NETWORK = "of a network"
"""Mark of a choice that describes a network or several machines, which a plan of one machine does not take."""

ELSEWHERE = "elsewhere"
"""Mark of a choice of a machine or a cluster by name, which a plan of this machine does not take."""


class ModelChoices(Group):
    """The model."""

    model: str | None = None
    """preset such as 175b, llama-3.1-8b, mixtral-8x7b; or a folder with config.json"""
    layers: int | None = None
    """layers of a GPT, instead of --model"""
    hidden: int | None = None
    """width of that GPT"""
    heads: int | None = None
    """attention heads of that GPT"""
    vocabulary: int | None = None
    """tokens in the vocabulary of that GPT (256)"""
    seq: int | None = None
    """sequence length in tokens (the model's)"""


class ClusterChoices(Group):
    """The workers and the network between them."""

    cluster: Annotated[str, OF_A_NETWORK] = "paper"
    """preset to start from: paper, dgx-a100, selene, h100-ethernet, desktops"""
    machine: Annotated[str | None, ELSEWHERE] = None
    """a single machine instead of a cluster, server and workers on it: desktop or workstation"""
    ram: Annotated[str | None, ELSEWHERE] = None
    """with --machine: memory of the machine, such as 64GiB"""
    gpu: Annotated[str | None, ELSEWHERE] = None
    """GPU of each worker, such as a100-40gb-pcie or rtx-4090"""
    workers: int | None = None
    """workers, one GPU each (the cluster's; 1 on a machine)"""
    link: Annotated[str | None, OF_A_NETWORK] = None
    """rate of each link, such as 100Gbps or 12.5GB/s"""
    aggregation: Annotated[str | None, OF_A_NETWORK] = None
    """help on the way to the server: switch, multicast or none"""
    form: Annotated[str | None, OF_A_NETWORK] = None
    """form of gradients: int32, int16, float32 or dtype (int32 through switches)"""


class ServerChoices(Group):
    """The servers and their disks."""

    servers: Annotated[int | None, OF_A_NETWORK] = None
    """number of parameter servers"""
    server_link: Annotated[str | None, OF_A_NETWORK] = None
    """rate of each server's link (as --link)"""
    server_memory: Annotated[str | None, OF_A_NETWORK] = None
    """memory of each server, such as 512GiB"""
    memory: str | None = None
    """budget of each server, as luwu server --memory (0.9 of its memory)"""
    disk: Annotated[str | None, ELSEWHERE] = None
    """disks of each server, such as pm1733-3.84tb, or SIZE@RATE such as 4TB@7GB/s"""
    disks: Annotated[int | None, OF_A_NETWORK] = None
    """number of disks of each server"""
    disk_read: Annotated[str | None, ELSEWHERE] = None
    """rate at which a disk reads, such as 7GB/s"""
    disk_write: Annotated[str | None, ELSEWHERE] = None
    """rate at which a disk writes"""
    disk_size: Annotated[str | None, ELSEWHERE] = None
    """size of a disk, such as 3.84TB"""
    endurance: str | None = None
    """bytes that a disk may take in its life, such as 600TBW; worn disks are part of a cluster's cost"""


class RunChoices(Group):
    """The run."""

    batch: int | None = None
    """sequences a step, over all workers (16 a worker)"""
    micro_batch: int | None = None
    """sequences a worker computes at a time"""
    dtype: str = "bfloat16"
    """bfloat16, float16 or float32"""
    lora_rank: int | None = None
    """rank of LoRA adapters on every matrix of a layer, beside which all else is frozen (none: all is trained)"""
    optimizer: str = "adamw"
    """optimizer, as in luwu train"""
    durable: Annotated[str, ELSEWHERE] = "step"
    """steps put on the disk, as in luwu train: step, '10 steps', '5 min' or stop"""
    checkpoint: Annotated[bool, Flag(default="yes")] = True
    """recompute activations in backward"""
    offload: Annotated[bool, Flag(default="yes")] = True
    """keep layers' inputs in the host's memory"""


class CostChoices(Group):
    """The time and money of a whole training."""

    tokens: str | None = None
    """token budget, such as 300B: days and dollars"""
    topology: Annotated[str | None, OF_A_NETWORK] = None
    """network: tree, rack, fat_tree or rail_only (tree)"""
    prices: Annotated[Path | None, OF_A_NETWORK] = None
    """JSON file of dollars by part, instead of ours"""


class ChoiceGroups(Group):
    """Groups of choices, each a panel of the help."""

    model: ModelChoices = ModelChoices()
    cluster: ClusterChoices = ClusterChoices()
    server: ServerChoices = ServerChoices()
    run: RunChoices = RunChoices()
    cost: CostChoices = CostChoices()


class Choices(CostChoices, RunChoices, ServerChoices, ClusterChoices, ModelChoices):
    """All choices together."""

    @staticmethod
    def of(given: Mapping[str, Mapping[str, Any]]) -> Choices:
        """Return the choices of flags that were given, by group."""
        return Choices(**{name: value for values in given.values() for name, value in values.items()})

    def refuse(self, marks: tuple[str, ...], reason: str) -> None:
        """Raise ConfigError for a choice with one of these marks; ``reason`` goes on after "expected none"."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.default and not set(marks).isdisjoint(field.metadata):
                raise ConfigError(f"{name.replace('_', '-')}: expected none {reason.format(found=value)}")
