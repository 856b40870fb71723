"""Validation loss and a sample of text. Every worker takes part in every pass, because a pull serves all of them."""

from __future__ import annotations

import torch

from luwu.config import Settings
from luwu.data.corpus import Corpus
from luwu.data.sampler import count_windows, cut, share
from luwu.data.tokenizer import Tokenizer, Tokens
from luwu.fabric.session import Session
from luwu.launch.model import Predict, RunModel
from luwu.launch.reports import ReportFunction
from luwu.models.gpt import generate

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
    if session.rank == 0:
        report({"kind": "stage", "text": "writing a sample", "detail": ""})
    tokenizer = corpus.tokenizer()
    prompt = prompt_tokens(corpus.validation, tokenizer)
    seq, sample = settings.model.seq, settings.sample
    written = generate(
        model.predict, torch.tensor(prompt, device=device), sample.length, seq, sample.temperature, settings.run.seed
    )
    beginning, whole = tokenizer.decode(prompt), tokenizer.decode(written.tolist())
    report(
        {
            "kind": "result",
            "loss_sum": loss_sum,
            "sequences": sequences,
            "prompt": beginning,
            "sample": whole[len(beginning) :],
        }
    )


@torch.no_grad()
def validate(
    settings: Settings,
    predict: Predict,
    session: Session,
    text: Tokens,
    device: torch.device,
    report: ReportFunction,
) -> tuple[float, int]:
    """This worker's share of the validation: its losses summed over sequences, and how many sequences it had.

    The windows are spread evenly over the text. In a pass without a sequence of its own a worker looks at another's
    and does not count it: it must pull as the others do.
    """
    seq, batch = settings.model.seq, settings.run.batch
    available = count_windows(text, seq)
    wanted = min(available, settings.data.validation_windows)
    windows = [index * available // wanted for index in range(wanted)]
    loss_sum, sequences = 0.0, 0
    for first in range(0, wanted, batch):
        together = windows[first : first + batch]
        own = together[share(len(together), session.rank, session.workers)]
        inputs, targets = cut(text, own or together[:1], seq)
        loss = predict(torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)).loss.item()
        loss_sum += loss * len(own)
        sequences += len(own)
        if session.rank == 0:
            done = first + len(together)
            report({"kind": "stage", "text": "validating", "detail": f"{done} of {wanted} sequences"})
    return loss_sum, sequences


def prompt_tokens(text: Tokens, tokenizer: Tokenizer) -> list[int]:
    """The prompt that begins a sample, as tokens."""
    head = text[: 256 * PROMPT_BYTES].tolist()
    if tokenizer.end is None:
        return list(choose_prompt(bytes(head)))
    prompt = choose_prompt(tokenizer.decode(head).encode()).decode(errors="ignore")
    return tokenizer.encode([prompt])[0] or [tokenizer.end]


def choose_prompt(head: bytes) -> bytes:
    """The first whole, short line of held-back text that begins with a letter; without one, where the text begins."""
    for line in head.splitlines(keepends=True)[1:]:
        if line[:1].isalpha() and 8 <= len(line) <= PROMPT_BYTES and line.endswith(b"\n"):
            return line
    return head[:PROMPT_BYTES]
