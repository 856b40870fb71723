"""`luwu export`: a store's model into a folder that other tools load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    target: Annotated[Path, typer.Argument(help="folder to write to: new, empty, or with part of this export")],
    store: Annotated[list[Path], typer.Option("--store", help="folders of the store, in their order; or a run folder")],
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; default: as the store has the parameters")
    ] = None,
    shard_size: Annotated[str, typer.Option(help="of a safetensors file, at most")] = "5GB",
    model: Annotated[
        Path | None, typer.Option(help="folder with config.json and tokenizer; default: those that were imported")
    ] = None,
) -> None:
    """Stream a store's committed step into safetensors that `from_pretrained` loads, a chunk at a time.

    The store must not be open in a server. What it reads is checked against the store's checksums; what it writes is
    complete or not there. The same command again keeps the files that are finished.

    Exit status: 0 exported, 1 the store is damaged or in use or the disk is full, 2 settings that cannot work.
    """
    from luwu.cli.progress import progress_bar, store_folders
    from luwu.config import parse_size
    from luwu.store.exporting import export_safetensors

    with progress_bar("export") as progress:
        report = export_safetensors(
            store_folders(store),
            target,
            dtype=dtype,
            shard_bytes=parse_size(shard_size),
            model_folder=model,
            progress=progress,
        )
    kept = f", {report.kept} of which were there" if report.kept else ""
    typer.echo(
        f"{target}: step {report.step}, {report.parameters:,} parameters, {report.nbytes / 1e9:.3f} GB in "
        f"{report.shards} files{kept}"
    )
