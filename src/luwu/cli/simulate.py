"""`luwu simulate`: play a run through in discrete events: stragglers, loss, several servers, trees of switches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from luwu.cli.setting_flags import Given, setting_flags
from luwu.cli.terminal import AsJson, say_json, say_rows
from luwu.core.words import counted
from luwu.plan.choices import Choices
from luwu.plan.simulation.scenario import ORDERS, SimulationGroups

if TYPE_CHECKING:
    from luwu.plan.simulation.run import Played
    from luwu.plan.simulation.tree import Links


@setting_flags(
    SimulationGroups,
    without=(
        "machine", "ram", "aggregation", "disk_size", "endurance", "offload", "lora_rank", "tokens", "topology",
        "prices",
    ),
)  # fmt: skip
def simulate(
    *,
    given: Given,
    trace: Annotated[Path | None, typer.Option(help="write a trace for ui.perfetto.dev into this JSON file")] = None,
    picture: Annotated[Path | None, typer.Option(help="draw the last step into this file (png, svg, pdf)")] = None,
    as_json: AsJson = False,
) -> None:
    """Play some steps of a run on workers, links, a tree of switches and servers with disks.

    The code that decides in a run decides here, too: what the server reads ahead and evicts, what workers pull ahead.
    """
    from luwu.core.durability import EACH_STEP
    from luwu.core.errors import ConfigError
    from luwu.plan.requests import make_request, one_of
    from luwu.plan.simulation.output import as_json as describe
    from luwu.plan.simulation.output import draw_timeline, write_trace
    from luwu.plan.simulation.run import Scenario, simulate

    scenario = given.pop("scenario")
    request = make_request(Choices.of(given | {"network": {"aggregation": "switch"}}))
    if request.settings.run.commit_points != EACH_STEP:
        raise ConfigError("durable: expected step, the only one that is simulated; leave it out, or use luwu plan")
    one_of("order", scenario.get("order", ORDERS[0]), ORDERS)
    played = simulate(request, Scenario(**scenario))
    if trace is not None:
        write_trace(played, trace)
    if picture is not None:
        draw_timeline(played, picture)
    if as_json:
        say_json(describe(played))
    else:
        print_played(played)


def network_text(links: Links) -> str:
    """Describe the workers and the tree of switches above them."""
    switches = counted(links.switches, "switch", "switches")
    tree = f"{switches} in {counted(links.levels, 'level')}" if links.levels > 1 else switches
    return f"{counted(links.workers, 'worker')}, {tree}"


def print_played(played: Played) -> None:
    """Print the length of each step, and the busy shares of the last."""
    from luwu.core.units import seconds_text

    starts = (0.0, *played.ends)
    rows = [
        (f"step {number}", seconds_text(end - start) + (", records the pass" if number == 1 else ""))
        for number, (start, end) in enumerate(zip(starts, played.ends, strict=False), start=1)
    ]
    rows.append(("throughput", f"{played.tokens_per_second:,.0f} tokens/s in the last step"))
    rows.append(("network", network_text(played.links)))
    rows += [(track, f"busy {played.busy_share(track):.0%} of the last step") for track in played.tracks]
    say_rows(rows)
