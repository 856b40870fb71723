"""`luwu import`: a checkpoint into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from luwu.cli.terminal import AsJson, say, say_json
from luwu.core.room import DISK_FULL_WAIT_SECONDS
from luwu.optim.table import OPTIMIZERS


def import_model(
    checkpoint: Annotated[
        Path, typer.Argument(help="folder with safetensors, or of torch.distributed.checkpoint with optimizer states")
    ],
    store: Annotated[list[Path], typer.Option("--store", help="folder of the store; several to stripe it over them")],
    model: Annotated[
        Path | None, typer.Option(help="folder with config.json and tokenizer; default: the checkpoint's")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16: what workers compute in")] = "float32",
    block_dtype: Annotated[
        list[str] | None,
        typer.Option(
            help="PATTERN=DTYPE: another dtype for the blocks of these names, such as 'lm_head=float32'; several"
        ),
    ] = None,
    optimizer: Annotated[
        str,
        typer.Option(help=f"optimizer to train with: {', '.join(OPTIMIZERS)}"),
    ] = "adamw",
    blocks: Annotated[
        list[str] | None,
        typer.Option(help="pattern of module names such as 'model.layers.*'; several; default: the repeated layer"),
    ] = None,
    disk_full_wait_seconds: Annotated[
        float, typer.Option(min=0, help="seconds to wait for room on a disk that fills up meanwhile; 0: end at once")
    ] = DISK_FULL_WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Stream a Hugging Face model's checkpoint into a store, a few chunks at a time.

    `luwu.parallelize` of the same model with the same blocks, dtypes and optimizer then trains on it. The same
    command continues an import that was killed, and does not repeat one that was finished.

    Exit status: 0 imported, 1 the store's folders cannot be used, 2 a model or settings that cannot work.
    """
    from dataclasses import asdict

    from luwu.cli.progress import progress_bar
    from luwu.core.room import Room
    from luwu.launch.settings import parse_block_dtypes
    from luwu.models.importing import import_pretrained

    with progress_bar("import") as progress:
        report = import_pretrained(
            checkpoint,
            store,
            model_folder=model,
            dtype=dtype,
            block_dtypes=parse_block_dtypes(block_dtype or []),
            optimizer=optimizer,
            blocks=blocks,
            progress=progress,
            room=Room(disk_full_wait_seconds),
        )
    if as_json:
        say_json(asdict(report))
    elif report.finished_before:
        say(f"{store[0]}: was imported from there before; nothing to do")
    else:
        say(f"{store[0]}: {report.parameters:,} parameters, step {report.step}")
