"""Validation loss and a sample of text. Every worker takes part in every pass, because a pull serves all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from luwu.core.shares import even_share
from luwu.data.corpus import Corpus
from luwu.data.sampler import count_windows, cut
from luwu.data.tokenizer import Tokenizer, Tokens
from luwu.launch.reports import ReportFunction
from luwu.launch.settings import Settings
from luwu.models.generation import Sampling, generate
from luwu.session.session import Session
from luwu.train.model import Predict, RunModel

PROMPT_BYTES = 64


def evaluate(
    settings: Settings,
    model: RunModel,
    session: Session,
    corpus: Corpus,
    device: torch.device,
    report: ReportFunction,
) -> None:
    """Measure the model on the held-back text and let it write; the results go to the launcher."""
    model.module.eval()
    loss_sum, sequences = validate(settings, model.predict, session, corpus.validation, device, report)

    def tell(done: int, wanted: int) -> None:
        if session.rank == 0:
            report({"kind": "stage", "text": "writing a sample", "detail": f"{done} of {wanted} {corpus.unit}s"})

    tokenizer = corpus.tokenizer()
    prompt = prompt_tokens(corpus.validation, tokenizer)
    sampling = Sampling(settings.sample.temperature, seed=settings.run.seed)
    begin, count, seq = torch.tensor(prompt, device=device), settings.sample.length, settings.model.seq
    written: list[int] = []
    tell(0, count)
    for token in generate(model.predict, begin, count, seq, sampling, cache=model.new_cache(samples=1)):
        written.append(int(token))
        tell(len(written), count)
    beginning, whole = tokenizer.decode(prompt), tokenizer.decode(prompt + written)
    report(
        {
            "kind": "result",
            "loss_sum": loss_sum,
            "sequences": sequences,
            "prompt": beginning,
            "sample": whole[len(beginning) :],
        }
    )


def validate(
    settings: Settings,
    predict: Predict,
    session: Session,
    text: Tokens,
    device: torch.device,
    report: ReportFunction | None = None,
) -> tuple[float, int]:
    """Return this worker's share of the validation: its losses summed over sequences, and the number of sequences."""

    def tell(done: int, wanted: int) -> None:
        if session.rank == 0 and report is not None:
            report({"kind": "stage", "text": "validating", "detail": f"{done} of {wanted} sequences"})

    seq, batch, wanted = settings.model.seq, settings.run.batch, settings.data.validation_windows
    return measure(predict, text, seq, lambda: batch, wanted, device, (session.rank, session.workers), tell)


@torch.no_grad()
def measure(
    predict: Predict,
    text: Tokens,
    seq: int,
    batch: Callable[[], int],
    wanted: int,
    device: torch.device,
    place: tuple[int, int] = (0, 1),
    on_progress: Callable[[int, int], None] = lambda done, wanted: None,
) -> tuple[float, int]:
    """Return the sum of one worker's losses in nats per token over its sequences, and the number of these sequences.

    The windows are spread evenly over the text. In a pass without a sequence of its own a worker looks at another's
    and does not count it: it must pull as the others do.

    Args:
        predict: the model in eval mode.
        text: tokens, more than ``seq``.
        seq: tokens of a sequence.
        batch: function that returns the number of sequences of the next pass, over all workers.
        wanted: number of sequences; fewer if the text is shorter.
        device: device of the model.
        place: the worker's rank, and the number of workers.
        on_progress: called with sequences done and in all.
    """
    available = count_windows(text, seq)
    wanted = min(available, wanted)
    windows = [index * available // wanted for index in range(wanted)]
    loss_sum, sequences, first = 0.0, 0, 0
    while first < wanted:
        together = windows[first : first + batch()]
        own = together[even_share(len(together), *place)]
        inputs, targets = cut(text, own or together[:1], seq)
        loss = predict(torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)).loss.item()
        loss_sum += loss * len(own)
        sequences += len(own)
        first += len(together)
        on_progress(first, wanted)
    return loss_sum, sequences


def prompt_tokens(text: Tokens, tokenizer: Tokenizer) -> list[int]:
    """The prompt that begins a sample, as tokens."""
    head = text[: 256 * PROMPT_BYTES].tolist()
    if tokenizer.end is None:
        return list(choose_prompt(bytes(head)))
    prompt = choose_prompt(tokenizer.decode(head).encode()).decode(errors="ignore")
    return tokenizer.encode([prompt])[0] or [tokenizer.end]


def choose_prompt(head: bytes) -> bytes:
    """Return the first whole, short line of held-back text that begins with a letter.

    Without one, the text's beginning.
    """
    for line in head.splitlines(keepends=True)[1:]:
        if line[:1].isalpha() and 8 <= len(line) <= PROMPT_BYTES and line.endswith(b"\n"):
            return line
    return head[:PROMPT_BYTES]
