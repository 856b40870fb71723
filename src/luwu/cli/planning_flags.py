"""The flags that `luwu plan` and `luwu simulate` share: model, cluster, server and run."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def option(text: str, flag: str, panel: str) -> Any:
    """A flag in one of the panels of the help."""
    return typer.Option(flag, help=text, rich_help_panel=panel, show_default=False)


Model = Annotated[
    str | None,
    option("preset such as 175b, llama-3.1-8b, mixtral-8x7b; or a folder with config.json", "--model", "model"),
]
Layers = Annotated[int | None, option("layers of a GPT, instead of --model", "--layers", "model")]
Hidden = Annotated[int | None, option("width of that GPT", "--hidden", "model")]
Heads = Annotated[int | None, option("attention heads of that GPT", "--heads", "model")]
Vocabulary = Annotated[int | None, option("tokens in the vocabulary of that GPT (256)", "--vocabulary", "model")]
Seq = Annotated[int | None, option("sequence length in tokens (the model's)", "--seq", "model")]
Cluster = Annotated[
    str,
    option("preset to start from: paper, dgx-a100, selene, h100-ethernet, desktops (paper)", "--cluster", "cluster"),
]
Machine = Annotated[
    str | None,
    option(
        "one machine instead of a cluster, server and workers on it: desktop or workstation", "--machine", "cluster"
    ),
]
Ram = Annotated[str | None, option("with --machine: memory of the machine, such as 64GiB", "--ram", "cluster")]
Gpu = Annotated[str | None, option("GPU of each worker, such as a100-40gb-pcie or rtx-4090", "--gpu", "cluster")]
Workers = Annotated[int | None, option("workers, one GPU each (the cluster's; 1 on a machine)", "--workers", "cluster")]
Link = Annotated[str | None, option("rate of each link, such as 100Gbps or 12.5GB/s", "--link", "cluster")]
Aggregation = Annotated[
    str | None, option("help on the way to the server: switch, multicast or none", "--aggregation", "cluster")
]
Form = Annotated[
    str | None,
    option("form of gradients: int32, int16, float32 or dtype (int32 through switches)", "--form", "cluster"),
]
Servers = Annotated[int | None, option("number of parameter servers", "--servers", "server")]
ServerLink = Annotated[str | None, option("rate of each server's link (as --link)", "--server-link", "server")]
ServerMemory = Annotated[str | None, option("memory of each server, such as 512GiB", "--server-memory", "server")]
Memory = Annotated[
    str | None, option("budget of each server, as luwu server --memory (0.9 of its memory)", "--memory", "server")
]
Disk = Annotated[
    str | None,
    option("disks of each server, such as pm1733-3.84tb, or SIZE@RATE such as 4TB@7GB/s", "--disk", "server"),
]
Disks = Annotated[int | None, option("number of disks of each server", "--disks", "server")]
DiskRead = Annotated[str | None, option("rate at which a disk reads, such as 7GB/s", "--disk-read", "server")]
DiskWrite = Annotated[str | None, option("rate at which a disk writes", "--disk-write", "server")]
DiskSize = Annotated[str | None, option("size of a disk, such as 3.84TB", "--disk-size", "server")]
Batch = Annotated[int | None, option("sequences a step, over all workers (16 a worker)", "--batch", "run")]
MicroBatch = Annotated[int | None, option("sequences a worker computes at a time", "--micro-batch", "run")]
Dtype = Annotated[str, option("bfloat16, float16 or float32 (bfloat16)", "--dtype", "run")]
Optimizer = Annotated[str, option("optimizer, as in luwu train (adamw)", "--optimizer", "run")]
Checkpoint = Annotated[bool, option("recompute activations in backward (yes)", "--checkpoint/--no-checkpoint", "run")]
Offload = Annotated[bool, option("keep layers' inputs in the host's memory (yes)", "--offload/--no-offload", "run")]
