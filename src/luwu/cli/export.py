"""`luwu export`: a store's model into a folder that other tools load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from luwu.cli.terminal import AsJson, say, say_json
from luwu.core.room import DISK_FULL_WAIT_SECONDS, Room
from luwu.core.words import counted


def export(
    target: Annotated[Path, typer.Argument(help="folder to write to: new, empty, or with part of this export")],
    store: Annotated[list[Path], typer.Option("--store", help="folders of the store, in their order; or a run folder")],
    snapshot: Annotated[int | None, typer.Option(help="export the store's snapshot of this step instead")] = None,
    dcp: Annotated[
        bool, typer.Option("--dcp", help="write the checkpoint of torch.distributed with optimizer states, for FSDP2")
    ] = False,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; default: the store's")] = None,
    shard_size: Annotated[str, typer.Option(help="largest size of one safetensors file")] = "5GB",
    model: Annotated[
        Path | None, typer.Option(help="folder with config.json and tokenizer; default: the imported ones")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="with --dcp: learning rate to write there")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="with --dcp: weight decay to write there")] = None,
    betas: Annotated[tuple[float, float] | None, typer.Option(help="with --dcp: betas to write there")] = None,
    eps: Annotated[float | None, typer.Option(help="with --dcp: epsilon to write there")] = None,
    disk_full_wait_seconds: Annotated[
        float, typer.Option(min=0, help="seconds to wait for room on a disk that fills up meanwhile; 0: end at once")
    ] = DISK_FULL_WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Stream a store's committed step into safetensors, a chunk at a time; `from_pretrained` loads imported models.

    The store must not be open in a server; a snapshot may be exported at any time. The checksum of everything that is
    read is compared; optimizer states are read with `--dcp` alone. A written file is complete or not there. The same
    command again keeps the files that are finished.

    With `--dcp` the values are float32. A store does not have the optimizer's settings: they are the options given
    here, or the defaults of torch's class, and the program that loads the checkpoint takes them over.

    Exit status: 0 exported, 1 the store is damaged or in use or the disk is full, 2 settings that cannot work.
    """
    from dataclasses import asdict

    from luwu.cli.progress import progress_bar, store_folders
    from luwu.core.errors import ConfigError
    from luwu.core.quantities import parse_size
    from luwu.core.room import Room
    from luwu.core.units import bytes_text
    from luwu.store.exporting import export_safetensors
    from luwu.store.model_files import CONFIG_NAME
    from luwu.store.snapshots import snapshot_folders

    folders = snapshot_folders(store_folders(store), snapshot)
    settings = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps}
    given = {name: value for name, value in settings.items() if value is not None}
    room = Room(disk_full_wait_seconds)
    if dcp:
        write_dcp(folders, target, given, dtype, model, room, as_json=as_json)
        return
    if given:
        raise ConfigError(f"--{next(iter(given)).replace('_', '-')}: expected --dcp with it, found safetensors")
    try:
        shard_bytes = parse_size(shard_size)
    except ConfigError as error:
        raise ConfigError(f"--shard-size: {error}") from None
    with progress_bar("export") as progress:
        report = export_safetensors(
            folders,
            target,
            dtype=dtype,
            shard_bytes=shard_bytes,
            model_folder=model,
            progress=progress,
            room=room,
        )
    loads = (target / CONFIG_NAME).is_file()
    if as_json:
        facts = asdict(report)
        say_json({"files": facts.pop("shards"), **facts, "config": loads})
        return
    kept = f"; {report.kept} of them already there" if report.kept else ""
    say(
        f"{target}: step {report.step}, {report.parameters:,} parameters, {bytes_text(report.nbytes)} in "
        f"{counted(report.shards, 'file')}{kept}"
    )
    if not loads:
        say(
            f"no {CONFIG_NAME}: the store has none, as its model was not imported, so from_pretrained cannot load "
            f"{target}; safetensors.torch.load_file loads its files, and luwu generate reads what luwu train trained"
        )


def write_dcp(
    folders: list[Path],
    target: Path,
    settings: dict[str, Any],
    dtype: str | None,
    model: Path | None,
    room: Room,
    *,
    as_json: bool,
) -> None:
    """Export for torch.distributed.checkpoint, and say what was written."""
    from dataclasses import asdict

    from luwu.cli.progress import progress_bar
    from luwu.core.errors import ConfigError
    from luwu.core.units import bytes_text
    from luwu.store.dcp_output import export_dcp

    if dtype not in (None, "float32") or model is not None:
        raise ConfigError("--dcp: expected neither --model nor another --dtype than float32, which it always writes")
    with progress_bar("export") as progress:
        report = export_dcp(folders, target, settings=settings, progress=progress, room=room)
    if as_json:
        say_json(asdict(report))
        return
    say(f"{target}: step {report.step}, {report.parameters:,} parameters, {bytes_text(report.nbytes)}")
