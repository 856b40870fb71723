"""`luwu generate`: text from a run's model or an imported one, whatever its size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from luwu.launch.reading import Readable

Source = Annotated[
    list[Path],
    typer.Argument(help="run folder of luwu train; or the folders of a store of luwu import, in their order"),
]
Memory = Annotated[str | None, typer.Option(help="for blocks of the store, such as 2GiB; default: the run's, or 8GiB")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: the run's, or cpu")]
Snapshot = Annotated[
    int | None, typer.Option(min=0, help="read the store's snapshot of this step, also while it is trained on")
]


def generate(
    source: Source,
    prompt: Annotated[
        str | None, typer.Option(help="text to go on from; default: a line that the run held back, or nothing")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="file with the text to go on from")] = None,
    length: Annotated[int, typer.Option(min=1, help="tokens to write")] = 400,
    samples: Annotated[int, typer.Option(min=1, help="texts, all written at once: each block is pulled once")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token")] = 0.9,
    top_k: Annotated[int | None, typer.Option(min=1, help="choose among so many of the likeliest tokens")] = None,
    seed: Annotated[int, typer.Option(min=0, help="the same seed writes the same text")] = 0,
    snapshot: Snapshot = None,
    memory: Memory = None,
    device: Device = None,
) -> None:
    """Write text, streaming the model through memory block by block, with a small cache of keys and values.

    One text appears as it is written, several at the end. Nothing else may have the store open; with
    `--snapshot` it may.

    Exit status: 0 written, 1 the store is in use or damaged, 2 settings that cannot work.
    """
    from luwu.cli.train import printable
    from luwu.data.decoding import TextStream
    from luwu.launch.reading import find_readable
    from luwu.launch.writing import check_request, ends_of, write
    from luwu.models.generation import Sampling

    check_device(device)
    text = read_prompt(prompt, prompt_file)
    sampling = Sampling(temperature, top_k, seed)
    readable = find_readable(source, snapshot)
    tokens = default_prompt(readable) if text is None else readable.prompt_tokens(text)
    beginning = printable(readable.tokenizer.decode(tokens) if text is None else text)
    with readable.open(memory=memory, device=device) as model:
        ends = ends_of(model)
        streams = [TextStream(readable.tokenizer, tokens, ends) for _ in range(samples)]
        texts = [""] * samples

        def show(written: str) -> None:
            typer.echo(printable(written), nl=False)

        def take(drawn: list[int]) -> None:
            for index, (stream, token) in enumerate(zip(streams, drawn, strict=True)):
                written = stream.push(token)
                if samples > 1:
                    texts[index] += written
                elif written:
                    show(written)

        check_request(model, tokens, length, sampling, samples)
        if samples == 1:
            show(beginning)
        write(model, readable.vocabulary, tokens, length, sampling, samples, take)
    if samples == 1:
        typer.echo(printable(streams[0].finish()))
        return
    for index, (stream, written) in enumerate(zip(streams, texts, strict=True), start=1):
        typer.echo(f"--- {index} of {samples}\n{beginning}{printable(written + stream.finish())}")


def check_device(device: str | None) -> None:
    """Refuse a device that does not exist; raises ConfigError."""
    from luwu.errors import ConfigError

    if device not in (None, "cpu", "cuda"):
        raise ConfigError(f"--device: expected cpu or cuda, found {device}")


def read_prompt(prompt: str | None, file: Path | None) -> str | None:
    """The text that was given, if any.

    Raises:
        ConfigError: it is empty, was given twice, or its file cannot be read.
    """
    from luwu.errors import ConfigError

    if prompt is not None and file is not None:
        raise ConfigError("--prompt: expected it or --prompt-file, found both; leave one out")
    if file is not None:
        try:
            prompt = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--prompt-file: {file}: cannot be read as text: {error}; check the path") from None
    if prompt == "":
        raise ConfigError("--prompt: expected some text, found none; leave it out for one chosen by luwu")
    return prompt


def default_prompt(readable: Readable) -> list[int]:
    """What a text begins with where the user said nothing."""
    from luwu.launch.evaluation import prompt_tokens
    from luwu.launch.reading import ReadableRun

    if isinstance(readable, ReadableRun):
        return prompt_tokens(readable.corpus.validation, readable.tokenizer)[: readable.seq // 2]
    end = readable.tokenizer.end
    return readable.prompt_tokens("") or ([] if end is None else [end])
