"""`luwu eval`: the loss of a run's model, or of an imported one, on a text. The model may have any size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from luwu.cli.generate import Device, Memory, Snapshot, Source, check_device
from luwu.cli.terminal import AsJson, say, say_json
from luwu.core.words import counted

if TYPE_CHECKING:
    from luwu.data.tokenizer import Tokens
    from luwu.train.reading import Readable


def evaluate(
    source: Source,
    data: Annotated[
        Path | None,
        typer.Option(help="file or folder (text, JSONL, Parquet); default: the run's held-back text"),
    ] = None,
    text_field: Annotated[
        str, typer.Option(help="field of JSONL, and column of Parquet, that holds the text")
    ] = "text",
    windows: Annotated[
        int | None,
        typer.Option(min=1, help="sequences to measure; default: the run's for its held-back text, else all"),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="sequences of a pass; default: as memory allows")] = None,
    seq: Annotated[int | None, typer.Option(min=1, help="tokens of a sequence; default: the run's, or 1024")] = None,
    snapshot: Snapshot = None,
    memory: Memory = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Measure loss, bits per byte and perplexity, streaming the model through memory block by block.

    A pass takes many sequences, a few at a time inside each block, so that each block is pulled once for all of them.
    No other process may have the store open, unless `--snapshot` names one of its snapshots; `luwu train --eval-every`
    measures while it trains.

    Exit status: 0 measured, 1 the store is in use or damaged, 2 settings that cannot work.
    """
    from dataclasses import asdict

    from luwu.data.tokenizer import ByteTokenizer
    from luwu.train.reading import ReadableRun, find_readable
    from luwu.train.scoring import rows_inside, score

    check_device(device)
    readable = find_readable(source, snapshot)
    seq = seq or readable.seq
    if data is None and isinstance(readable, ReadableRun):
        windows = windows or readable.settings.data.validation_windows
    tokens, bytes_per_token = find_tokens(readable, data, text_field, windows and windows * seq + 1)
    with readable.open(memory=memory, device=device, micro_batch=rows_inside(seq)) as model:
        found = score(model, readable.step, tokens, bytes_per_token, seq=seq, windows=windows, batch=batch)
    if as_json:
        say_json(asdict(found), indent=None)
        return
    unit = "byte" if isinstance(readable.tokenizer, ByteTokenizer) else "token"
    say(f"{readable.name}: step {found.step}, {counted(found.windows, 'sequence')} of {found.seq} tokens")
    say(
        f"loss {found.loss:.4f} nats per {unit}, {found.bits_per_byte:.4f} bits per byte, "
        f"perplexity {found.perplexity:.2f}; {found.tokens_per_second:,.0f} tokens/s"
    )


def find_tokens(readable: Readable, data: Path | None, text_field: str, most: int | None) -> tuple[Tokens, float]:
    """Return the tokens to measure on, and the bytes of text per token; of other text the first ``most`` tokens.

    Raises:
        ConfigError: a store has no text of its own. DataError: the text cannot be read.
    """
    from luwu.core.errors import ConfigError
    from luwu.data.preparation import read_tokens
    from luwu.data.source import find_text
    from luwu.train.reading import ReadableRun

    if data is not None:
        tokens, text_bytes = read_tokens(find_text(data), readable.tokenizer, text_field, most)
        return tokens[:most], text_bytes / max(1, len(tokens))
    if not isinstance(readable, ReadableRun):
        raise ConfigError("--data: expected a text, as a store of luwu import has none of its own, found none")
    return readable.corpus.validation, readable.corpus.bytes_per_token
