"""`luwu plan`: plan a run before anyone buys anything: whether a model fits, its speed and its cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from luwu.cli.setting_flags import Given, setting_flags
from luwu.cli.terminal import AsJson, add_rows, say, say_json, say_rows
from luwu.core.exits import Exit
from luwu.plan.choices import ChoiceGroups, Choices

if TYPE_CHECKING:
    from luwu.plan.planning import Plan, Request
    from luwu.plan.report import Rows

HERE = "this machine"


@setting_flags(ChoiceGroups)
def plan(
    *,
    given: Given,
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
    layout: Annotated[
        str | None,
        typer.Option(
            help="tensor x pipeline x data parallelism on the same workers beside it: 8x8x8, or 8x8x8@zero_bubble"
        ),
    ] = None,
    measured: Annotated[
        bool, typer.Option("--measured", help="measure this machine, and plan a luwu train on it", rich_help_panel=HERE)
    ] = False,
    store: Annotated[
        Path | None,
        typer.Option(
            help="with --measured: folder that the store would go to (in a run folder in runs)", rich_help_panel=HERE
        ),
    ] = None,
    link_to: Annotated[
        str | None,
        typer.Option(help="with --measured: HOST:PORT where luwu link answers", rich_help_panel=HERE),
    ] = None,
    chart: Annotated[Path | None, typer.Option(help="draw the plan into this file (png, svg, pdf)")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a run: memory, disk, traffic, time and money.

    `luwu plan --model 175b` plans for the cluster of the published design; other flags replace parts of it.
    `luwu plan --model llama-3.1-8b --machine desktop --ram 64GiB --disk 4TB@7GB/s` plans for one machine and its GPU.
    `luwu plan --measured --layers 12 --hidden 768 --heads 12` plans for this machine, which it measures for a minute.

    Exit status: 0 it fits, 1 it does not, 2 a flag that makes no sense.
    """
    from luwu.core.errors import ConfigError
    from luwu.core.units import parse_count
    from luwu.plan.requests import make_request, named

    choices = Choices.of(given)
    budget = named("tokens", parse_count, choices.tokens)
    if measured:
        refuse_beside_measured({"best": best, "peers": peers, "layout": layout is not None, "chart": chart is not None})
        plan_this_machine(choices, store, link_to, budget, as_json)
        return
    if link_to is not None:
        raise ConfigError("link-to: expected --measured beside it, which measures; or give the rate with --link")
    request = make_request(choices)
    found = choose_plan(request, best, vary_batch=choices.batch is None)
    if chart is not None:
        from luwu.plan.chart import draw_plan

        draw_plan(found, chart)
    show(found, budget, peers, layout, as_json)
    if not found.fits:
        raise typer.Exit(Exit.FAILED)


def refuse_beside_measured(given: dict[str, bool]) -> None:
    """Refuse flags that a plan of this machine does not take; ConfigError names the flag."""
    from luwu.core.errors import ConfigError

    for name, is_given in given.items():
        if is_given:
            raise ConfigError(f"{name}: expected none beside --measured, which plans for this machine; leave it out")


def plan_this_machine(
    choices: Choices, store: Path | None, link_to: str | None, budget: float | None, as_json: bool
) -> None:
    """Measure, plan, and print."""
    from luwu.cli.progress import stages
    from luwu.control.address import parse_host_port
    from luwu.core.units import parse_endurance
    from luwu.plan.measured.planning import RUNS, suggest
    from luwu.plan.measured.report import as_json as describe
    from luwu.plan.measured.report import sections
    from luwu.plan.measured.requests import SECONDS, local_request, measure_and_plan
    from luwu.plan.requests import named
    from luwu.probe.link import measure_link

    endurance = named("endurance", parse_endurance, choices.endurance)
    place = store or RUNS
    request = local_request(choices, place)
    other = parse_host_port(link_to, lowest_port=1) if link_to is not None else None
    link = None
    with stages() as say:
        if other is not None:
            say(f"measuring the link to {other}")
            link = measure_link(other, SECONDS)
        found = measure_and_plan(request, place, say)
    suggested = suggest(found)
    if as_json:
        say_json(describe(found, suggested, store, budget, link, endurance))
    else:
        print_sections(sections(found, suggested, store, budget, link, endurance))
    if found.misses:
        raise typer.Exit(Exit.FAILED)


def choose_plan(request: Request, best: bool, *, vary_batch: bool) -> Plan:
    """Return the plan of a request, or the best one around it; where none fits, the request's own with its misses."""
    from luwu.plan.planning import make_plan
    from luwu.plan.search import find_best

    if best:
        found = find_best(request, vary_batch=vary_batch)
        if found is not None:
            return found.plan
    return make_plan(request)


def show(found: Plan, budget: float | None, with_peers: bool, layout: str | None, as_json: bool) -> None:
    """Print tables, or one JSON object."""
    from luwu.plan.comparison import compare
    from luwu.plan.layouts import lay_out
    from luwu.plan.report import as_json as describe
    from luwu.plan.report import sections

    compared = compare(found.request) if with_peers else []
    laid_out = None if layout is None else lay_out(found, layout)
    if as_json:
        described = describe(found, budget)
        if with_peers:
            described["peers"] = [row.as_json() for row in compared]
        if laid_out is not None:
            described["layout"] = laid_out.as_json()
        say_json(described)
        return
    print_sections(sections(found, budget) | ({} if laid_out is None else {"the layout": laid_out.rows()}))
    if with_peers:
        print_peers([row.cells() for row in compared])


def print_sections(found: dict[str, Rows]) -> None:
    """Print the headings with a row for each fact. A command is one line, so that it can be pasted."""
    for heading, rows in found.items():
        typer.secho(heading, bold=True)
        say_rows(list(rows), least_width=24)
        say("")


def print_peers(rows: list[tuple[str, ...]]) -> None:
    """Print today's systems on the same cluster and with the same batch."""
    from rich.console import Console
    from rich.table import Table

    table: Any = Table(box=None, pad_edge=False, title="other systems on it", title_justify="left", title_style="bold")
    for column in ("system", "sequences a worker", "step", "tokens/s", "per dollar", "what binds"):
        table.add_column(column, overflow="fold")
    add_rows(table, rows)
    Console(soft_wrap=True).print(table, highlight=False)
