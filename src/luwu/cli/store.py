"""`luwu store`: describe a store, check all of it, and give room back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from luwu.cli.terminal import GO_BACK, AsJson, say, say_json, say_rows
from luwu.core.exits import Exit
from luwu.core.words import counted

if TYPE_CHECKING:
    from luwu.store.upkeep import StoreInfo
    from luwu.store.verifying import VerifyReport

Folders = Annotated[
    list[Path], typer.Argument(help="the folders of the store, in the order of --store; or a run folder")
]
Snapshot = Annotated[int | None, typer.Option(help="read the store's snapshot of this step instead")]

app = typer.Typer(no_args_is_help=True, help="Look after a store.")


@app.command()
def info(
    folders: Folders,
    snapshot: Snapshot = None,
    as_json: AsJson = False,
) -> None:
    """Describe a store, even while it is trained on."""
    from dataclasses import asdict

    from luwu.cli.progress import store_folders
    from luwu.store.snapshots import snapshot_folders
    from luwu.store.upkeep import info as look

    found = look(snapshot_folders(store_folders(folders), snapshot))
    if as_json:
        say_json(asdict(found))
        return
    print_info(found)


@app.command()
def verify(folders: Folders, snapshot: Snapshot = None, as_json: AsJson = False) -> None:
    """Read all of the committed step and compare every checksum.

    Exit status: 0 everything is right, 1 a chunk or a commit record is damaged. The first damaged chunk is named, and
    all are counted.
    """
    from dataclasses import asdict

    from luwu.cli.progress import progress_bar, store_folders
    from luwu.store.snapshots import snapshot_folders
    from luwu.store.verifying import verify as read_all

    with progress_bar("verify") as progress:
        report = read_all(snapshot_folders(store_folders(folders), snapshot), progress)
    if as_json:
        say_json(asdict(report))
    else:
        print_report(report)
    if report.damaged or report.findings:
        raise typer.Exit(Exit.FAILED)


def print_report(report: VerifyReport) -> None:
    """Print what was read, and what is damaged."""
    from luwu.core.units import bytes_text
    from luwu.store.snapshots import may_help

    rate = report.nbytes / max(report.seconds, 1e-9) / 1e6
    read = f"step {report.step}: {bytes_text(report.nbytes)} in {counted(report.chunks, 'chunk')}, {rate:.0f} MB/s"
    for finding in report.findings:
        say(f"damaged: {finding}")
    if report.damaged:
        way_back = f"\n{GO_BACK}" if may_help(report.first_damage) else ""
        say(f"{read}: {counted(report.damaged, 'damaged chunk')}; the first:\n{report.first_damage}{way_back}")
    else:
        say(f"{read}: every checksum of a chunk is right" if report.findings else f"{read}: every checksum is right")


@app.command()
def compact(folders: Folders, as_json: AsJson = False) -> None:
    """Give the disk back the room of the versions that are not committed: nearly half of a store.

    No value is lost, and training may continue: it takes the room again when it starts. The store cannot go back by one
    step any more, which several servers may need: compact all of their stores, or none.
    """
    from luwu.cli.progress import store_folders
    from luwu.core.units import bytes_text
    from luwu.store.upkeep import compact as give_back

    given_back = give_back(store_folders(folders))
    if as_json:
        say_json({"given_back_bytes": given_back})
        return
    say(f"{bytes_text(given_back)} given back")


def model_text(found: StoreInfo) -> str:
    """Describe the model of a store, if the store was imported or trained by `luwu train`."""
    if found.model:
        return ", ".join(found.model)
    if found.run is None:
        return "not known: it was neither imported nor trained by luwu train"
    settings = found.run.settings
    if settings.get("model.path"):
        return f"described by {settings['model.path']}"
    shape = {"layers": "layers", "hidden": "wide", "heads": "heads"}
    words = ", ".join(f"{settings.get(f'model.{name}')} {unit}" for name, unit in shape.items())
    return f"the GPT of luwu train: {words}, sequences of {settings.get('model.seq')} tokens"


def run_text(found: StoreInfo) -> str:
    """Return the description of the run that a store belongs to; empty if none is known."""
    if found.run is None:
        return ""
    data = found.run.data.get("name")
    text = f"{found.run.folder} on {found.run.host}" + (f", data {data}" if data else "")
    first = found.run.first.step
    return f"{text}; began at step {first} of the store" if first else text


def print_info(found: StoreInfo) -> None:
    """Print the description of a store, one line for each property."""
    from luwu.core.units import bytes_text

    step = "no values yet" if found.step is None else f"{found.step} committed"
    tried = f"; {found.attempts} tried, {found.rolled_back} rolled back"
    state = "an import that was not finished" if found.unfinished_import else step + tried
    rows = {
        "model": model_text(found),
        "run": run_text(found),
        "from": f"{counted(len(found.origin), 'file')} such as {found.origin[0]}" if found.origin else "",
        "step": state + (" (open in another process)" if found.in_use else ""),
        "parameters": f"{found.trainable + found.frozen:,}, {found.frozen:,} of them frozen; {found.dtype}",
        "optimizer": f"{found.optimizer}: {', '.join(found.optimizer_states) or 'nothing to keep'}",
        "loss scale": "" if found.loss_scale is None else f"{found.loss_scale:g}",
        "divided into": f"{counted(found.blocks, 'block')}, {counted(found.chunks, 'chunk')}",
        "standby": str(found.standby),
        "damaged": "\n".join(found.findings),
        "snapshots": ", ".join(f"step {step}" for step in found.snapshots),
        "uuid": found.uuid,
    }
    folders = [
        f"{use.path}: {bytes_text(use.file_bytes)}, taking {bytes_text(use.allocated_bytes)}; "
        f"{bytes_text(use.free_bytes)} free on its disk"
        for use in found.folders
    ]
    say_rows([(name, value) for name, value in rows.items() if value] + [("folder", text) for text in folders])
