"""`luwu tokenizer`: train a byte-level BPE on text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from luwu.cli.terminal import AsJson, say_json


def tokenizer(
    text: Annotated[
        list[Path] | None,
        typer.Argument(
            help="files and folders of text, JSONL and Parquet; without any, the Python standard library's source"
        ),
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="tokens, at least 257: the bytes and <|endoftext|>")] = 8192,
    out: Annotated[Path, typer.Option(help="tokenizer.json to write")] = Path("tokenizer.json"),
    text_field: Annotated[
        str, typer.Option(help="field of JSONL, and column of Parquet, that holds the text")
    ] = "text",
    as_json: AsJson = False,
) -> None:
    """Train a byte-level BPE, as GPT-2's is, for `luwu train --tokenizer` and for Hugging Face's tokenizers.

    Text is read as a stream, so it may be larger than memory. The text that `luwu train` would hold back for validation
    is not trained on; it measures the tokenizer. The same text gives the same file. Nothing is written before the
    end, so Ctrl-C is safe.
    """
    import signal
    from dataclasses import asdict

    from rich.console import Console

    from luwu.core.errors import ConfigError
    from luwu.core.units import bytes_text
    from luwu.core.words import printable
    from luwu.data.bpe import train_tokenizer

    if not out.absolute().parent.is_dir() or out.is_dir():
        raise ConfigError(f"--out {out}: expected a file in a folder that exists, found none; make the folder first")
    console = Console(soft_wrap=True, highlight=False, stderr=as_json)
    with console.status("reading the text") as status:

        def show(done: float, total: float) -> None:
            if done < total:
                status.update(f"reading the text: {100 * done / total:.0f} % of {bytes_text(total)}")

        # The library looks for no signals while it merges, for minutes.
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            trained = train_tokenizer(
                text or None,
                out,
                vocab_size,
                text_field=text_field,
                on_progress=show,
                on_merging=lambda: status.update("merging pairs of tokens"),
            )
        finally:
            signal.signal(signal.SIGINT, before)
    if as_json:
        say_json({"out": str(out), **asdict(trained), "bytes_per_token": trained.bytes_per_token})
        return
    console.print(
        printable(f"{out}: {trained.vocabulary:,} tokens, trained on {bytes_text(trained.train_bytes)}"), markup=False
    )
    if trained.vocabulary < vocab_size:
        console.print(f"the text has too few different words for {vocab_size:,} tokens")
    if trained.measured_tokens:
        console.print(
            f"{trained.bytes_per_token:.3f} bytes per token on {bytes_text(trained.measured_bytes)} of held-out text"
        )
