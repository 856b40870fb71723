"""`luwu generate`: text from a run's model or an imported one, whatever its size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from luwu.cli.terminal import say

if TYPE_CHECKING:
    from luwu.data.decoding import TextStream
    from luwu.train.reading import Readable

Source = Annotated[
    list[Path],
    typer.Argument(help="run folder of luwu train; or the folders of a store of luwu import, in their order"),
]
Memory = Annotated[
    str | None, typer.Option(help="memory for blocks of the store, such as 2GiB; default: the run's, or 8GiB")
]
Device = Annotated[str | None, typer.Option(help="device to compute on: cpu or cuda; default: the run's, or cpu")]
Snapshot = Annotated[
    int | None, typer.Option(min=0, help="read the store's snapshot of this step, even while the store is trained on")
]


def generate(
    source: Source,
    prompt: Annotated[
        str | None, typer.Option(help="text to continue; default: a line that the run held back, or nothing")
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="file with the text to continue")] = None,
    length: Annotated[int, typer.Option(min=1, help="tokens to write")] = 400,
    samples: Annotated[
        int, typer.Option(min=1, help="number of texts, all written at once: each block is pulled once")
    ] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="randomness; 0 always takes the likeliest token")] = 0.9,
    top_k: Annotated[int | None, typer.Option(min=1, help="choose among this number of likeliest tokens")] = None,
    seed: Annotated[int, typer.Option(min=0, help="the same seed writes the same text")] = 0,
    snapshot: Snapshot = None,
    memory: Memory = None,
    device: Device = None,
) -> None:
    """Write text, streaming the model through memory block by block, with a small cache of keys and values.

    One text appears as it is written, several at the end. No other process may have the store open, unless
    `--snapshot` names one of its snapshots.

    Exit status: 0 written, 1 the store is in use or damaged, 2 settings that cannot work.
    """
    from luwu.data.decoding import TextStream
    from luwu.models.generation import Sampling
    from luwu.train.reading import find_readable
    from luwu.train.writing import check_request, ends_of, write

    check_device(device)
    text = read_prompt(prompt, prompt_file)
    sampling = Sampling(temperature, top_k, seed)
    readable = find_readable(source, snapshot)
    tokens = default_prompt(readable) if text is None else readable.prompt_tokens(text)
    beginning = readable.tokenizer.decode(tokens) if text is None else text
    with readable.open(memory=memory, device=device) as model:
        ends = ends_of(model)
        output = Output(beginning, [TextStream(readable.tokenizer, tokens, ends) for _ in range(samples)])
        check_request(model, tokens, length, sampling, samples)
        with output:
            write(model, readable.vocabulary, tokens, length, sampling, samples, output.take)


class Output:
    """Output of texts: one text as it is written, several when all are done. Nothing appears before the first token.

    So a store whose values cannot be read gives only an error. If reading fails later, the line is ended.
    """

    def __init__(self, beginning: str, streams: list[TextStream]) -> None:
        self._beginning = beginning
        self._streams = streams
        self._texts = [""] * len(streams)
        self._begun = False

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        last = [stream.finish() for stream in self._streams] if kind is None else [""] * len(self._streams)
        if len(self._streams) == 1:
            if self._begun or kind is None:
                self._show(last[0], end=True)
        elif kind is None:
            for index, (text, rest) in enumerate(zip(self._texts, last, strict=True), start=1):
                say(f"--- {index} of {len(last)}\n{self._beginning}{text}{rest}")

    def take(self, drawn: list[int]) -> None:
        """Add the next token of each text."""
        for index, (stream, token) in enumerate(zip(self._streams, drawn, strict=True)):
            written = stream.push(token)
            if len(self._streams) == 1:
                self._show(written)
            else:
                self._texts[index] += written

    def _show(self, written: str, *, end: bool = False) -> None:
        say(written if self._begun else self._beginning + written, end=end)
        self._begun = True


def check_device(device: str | None) -> None:
    """Refuse a device that does not exist; raises ConfigError."""
    from luwu.core.errors import ConfigError

    if device not in (None, "cpu", "cuda"):
        raise ConfigError(f"--device: expected cpu or cuda, found {device}")


def read_prompt(prompt: str | None, file: Path | None) -> str | None:
    """Return the text that was given, if any.

    Raises:
        ConfigError: it is empty, was given twice, or its file cannot be read.
    """
    from luwu.core.errors import ConfigError

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
    """Return the tokens that a text begins with when the user gave no prompt."""
    from luwu.train.evaluation import prompt_tokens
    from luwu.train.reading import ReadableRun

    if isinstance(readable, ReadableRun):
        return prompt_tokens(readable.corpus.validation, readable.tokenizer)[: readable.seq // 2]
    end = readable.tokenizer.end
    return readable.prompt_tokens("") or ([] if end is None else [end])
