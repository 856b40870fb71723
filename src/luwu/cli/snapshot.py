"""`luwu snapshot`: keep a committed step of a store, and go back to it."""

from __future__ import annotations

from typing import Annotated

import typer

from luwu.cli.store import Folders
from luwu.cli.terminal import AsJson, say_json

Step = Annotated[int, typer.Option("--step", min=0, help="committed step of the snapshot; see luwu snapshot list")]

app = typer.Typer(no_args_is_help=True, help="Take, show, restore and remove snapshots of a store.")


@app.command()
def take(folders: Folders, as_json: AsJson = False) -> None:
    """Take a snapshot of the last committed step, also of a store that is trained on: nobody waits for it.

    Nothing is copied. The snapshot takes room as the store changes, up to one version of its trainable parameters and
    states. Frozen parameters stay shared. In a store that is open the room is reserved at once.

    Exit status: 0 taken, 1 there is no room, or the store is damaged, 2 settings that cannot work.
    """
    from luwu.cli.progress import store_folders
    from luwu.store.snapshots import take as take_one

    step = take_one(store_folders(folders))
    if as_json:
        say_json({"step": step})
        return
    typer.echo(f"snapshot of step {step}")


@app.command("list")
def list_all(folders: Folders, as_json: AsJson = False) -> None:
    """Show a store's snapshots: step, time, and the room that nothing else shares."""
    from dataclasses import asdict

    from luwu.cli.progress import store_folders
    from luwu.core.units import bytes_text
    from luwu.store.snapshots import snapshots

    found = snapshots(store_folders(folders))
    if as_json:
        say_json([asdict(each) for each in found])
        return
    if not found:
        typer.echo("no snapshots; luwu snapshot take makes one")
    for each in found:
        taken_at = each.taken_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        typer.echo(f"step {each.step:>8}  {taken_at}  {bytes_text(each.own_bytes)} of its own")


@app.command()
def restore(folders: Folders, step: Step) -> None:
    """Make the store stand at a snapshot again; the snapshot stays. The store must not be open.

    All of the snapshot is read first; if a checksum is wrong the store stays as it is. Training continues from there
    with the same numbers as the first time. Later steps are gone, unless another snapshot has them. With several
    servers, restore all of their stores to the same step.

    Exit status: 0 restored, 1 the store is open or damaged, 2 there is no such snapshot.
    """
    from luwu.cli.progress import progress_bar, store_folders
    from luwu.store.snapshots import restore as go_to

    with progress_bar("verify") as progress:
        go_to(store_folders(folders), step, progress)
    typer.echo(f"the store stands at step {step}")


@app.command()
def remove(folders: Folders, step: Step) -> None:
    """Remove a snapshot, also of a store that is trained on."""
    from luwu.cli.progress import store_folders
    from luwu.store.snapshots import remove as remove_one

    remove_one(store_folders(folders), step)
    typer.echo(f"removed the snapshot of step {step}")
