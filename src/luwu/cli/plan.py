"""`luwu plan`: whether a model fits, how fast it will go and what it costs, before anyone buys anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from luwu.plan.planning import Plan, Request
    from luwu.plan.report import Rows

EXIT_DOES_NOT_FIT = 1


def option(text: str, flag: str, panel: str) -> Any:
    """A flag in one of the panels of the help."""
    return typer.Option(flag, help=text, rich_help_panel=panel, show_default=False)


def plan(
    model: Annotated[
        str | None,
        option("preset such as 175b, llama-3.1-8b, mixtral-8x7b; or a folder with config.json", "--model", "model"),
    ] = None,
    layers: Annotated[int | None, option("layers of a GPT, instead of --model", "--layers", "model")] = None,
    hidden: Annotated[int | None, option("its width", "--hidden", "model")] = None,
    heads: Annotated[int | None, option("its attention heads", "--heads", "model")] = None,
    vocabulary: Annotated[int | None, option("its tokens (256)", "--vocabulary", "model")] = None,
    seq: Annotated[int | None, option("sequence length in tokens (the model's)", "--seq", "model")] = None,
    cluster: Annotated[
        str,
        option(
            "preset to start from: paper, dgx-a100, selene, h100-ethernet, desktops (paper)", "--cluster", "cluster"
        ),
    ] = "paper",
    gpu: Annotated[
        str | None, option("GPU of each worker, such as a100-40gb-pcie or rtx-4090", "--gpu", "cluster")
    ] = None,
    workers: Annotated[int | None, option("workers, one GPU each", "--workers", "cluster")] = None,
    link: Annotated[str | None, option("each link, such as 100Gbps or 12.5GB/s", "--link", "cluster")] = None,
    aggregation: Annotated[
        str | None, option("what helps on the way: switch, multicast or none", "--aggregation", "cluster")
    ] = None,
    form: Annotated[
        str | None,
        option(
            "what gradients travel as: int32, int16, float32 or dtype (int32 through switches)", "--form", "cluster"
        ),
    ] = None,
    servers: Annotated[int | None, option("parameter servers", "--servers", "server")] = None,
    server_link: Annotated[str | None, option("their links (as --link)", "--server-link", "server")] = None,
    server_memory: Annotated[str | None, option("their memory, such as 512GiB", "--server-memory", "server")] = None,
    memory: Annotated[
        str | None, option("budget of each, as of luwu server --memory (0.9 of their memory)", "--memory", "server")
    ] = None,
    disk: Annotated[str | None, option("their disks, such as pm1733-3.84tb or 990-pro-2tb", "--disk", "server")] = None,
    disks: Annotated[int | None, option("disks of each", "--disks", "server")] = None,
    disk_read: Annotated[str | None, option("what a disk reads, such as 7GB/s", "--disk-read", "server")] = None,
    disk_write: Annotated[str | None, option("what a disk writes", "--disk-write", "server")] = None,
    disk_size: Annotated[str | None, option("what a disk holds, such as 3.84TB", "--disk-size", "server")] = None,
    batch: Annotated[int | None, option("sequences a step, over all workers (16 a worker)", "--batch", "run")] = None,
    micro_batch: Annotated[int | None, option("sequences a worker computes at a time", "--micro-batch", "run")] = None,
    dtype: Annotated[str, option("bfloat16 or float32 (bfloat16)", "--dtype", "run")] = "bfloat16",
    optimizer: Annotated[str, option("as of luwu train (adamw)", "--optimizer", "run")] = "adamw",
    checkpoint: Annotated[
        bool, option("recompute activations in backward (yes)", "--checkpoint/--no-checkpoint", "run")
    ] = True,
    offload: Annotated[
        bool, option("keep layers' inputs in the host's memory (yes)", "--offload/--no-offload", "run")
    ] = True,
    tokens: Annotated[str | None, option("token budget, such as 300B: days and dollars", "--tokens", "cost")] = None,
    topology: Annotated[
        str | None, option("network: tree, rack, fat_tree or rail_only (tree)", "--topology", "cost")
    ] = None,
    prices: Annotated[Path | None, option("JSON file of dollars by part, instead of ours", "--prices", "cost")] = None,
    best: Annotated[
        bool,
        typer.Option(
            "--best",
            help="search micro-batch, memory, servers and disks for throughput per dollar; without --batch, that too",
        ),
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="compare with ZeRO-3, FSDP2, ZeRO-Infinity and others")
    ] = False,
    chart: Annotated[Path | None, typer.Option(help="draw the plan into this file (png, svg, pdf)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Say what a run would take: memory, disk, traffic, time and money.

    `luwu plan --model 175b` plans for the cluster of the published design; other flags replace parts of it.

    Exit status: 0 it fits, 1 it does not, 2 something given makes no sense.
    """
    from luwu.plan.requests import Choices, make_request
    from luwu.plan.units import parse_count

    request = make_request(
        Choices(
            model=model, layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary, seq=seq,
            cluster=cluster, gpu=gpu, workers=workers, link=link, aggregation=aggregation, form=form,
            servers=servers, server_link=server_link, server_memory=server_memory, memory=memory,
            disk=disk, disks=disks, disk_read=disk_read, disk_write=disk_write, disk_size=disk_size,
            batch=batch, micro_batch=micro_batch, dtype=dtype, optimizer=optimizer, checkpoint=checkpoint,
            offload=offload, topology=topology, prices=prices,
        )
    )  # fmt: skip
    budget = parse_count(tokens) if tokens is not None else None
    found = choose_plan(request, best, vary_batch=batch is None)
    if chart is not None:
        from luwu.plan.chart import draw_plan

        draw_plan(found, chart)
    show(found, budget, peers, as_json)
    if not found.fits:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def choose_plan(request: Request, best: bool, *, vary_batch: bool) -> Plan:
    """The plan of a request, or the best one around it; where none fits, what the request lacks."""
    from luwu.plan.planning import make_plan
    from luwu.plan.search import find_best

    if best:
        found = find_best(request, vary_batch=vary_batch)
        if found is not None:
            return found.plan
    return make_plan(request)


def show(found: Plan, budget: float | None, with_peers: bool, as_json: bool) -> None:
    """Print tables, or one JSON object."""
    import json

    from luwu.plan.comparison import compare
    from luwu.plan.report import as_json as describe
    from luwu.plan.report import sections

    compared = compare(found.request) if with_peers else []
    if as_json:
        described = describe(found, budget)
        if with_peers:
            described["peers"] = [row.as_json() for row in compared]
        typer.echo(json.dumps(described, indent=1))
        return
    print_sections(sections(found, budget))
    if with_peers:
        print_peers([row.cells() for row in compared])


def print_sections(found: dict[str, Rows]) -> None:
    """A heading and a row for each thing to know."""
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True)
    for heading, rows in found.items():
        table: Any = Table(
            box=None, pad_edge=False, show_header=False, title=heading, title_justify="left", title_style="bold"
        )
        table.add_column(style="dim", no_wrap=True, min_width=24)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(name, value)
        console.print(table, highlight=False)
        console.print()


def print_peers(rows: list[tuple[str, ...]]) -> None:
    """The same cluster and batch with today's systems."""
    from rich.console import Console
    from rich.table import Table

    table: Any = Table(box=None, pad_edge=False, title="other systems on it", title_justify="left", title_style="bold")
    for column in ("system", "sequences a worker", "step", "tokens/s", "per dollar", "what binds"):
        table.add_column(column, overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    Console(soft_wrap=True).print(table, highlight=False)
