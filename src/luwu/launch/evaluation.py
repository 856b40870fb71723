"""Validation loss and a sample of text. Every worker takes part in every pass, because a pull serves all of them."""

from __future__ import annotations

import numpy as np
import torch

from luwu.config import Settings
from luwu.data.corpus import Bytes
from luwu.data.sampler import cut, share
from luwu.fabric.session import Session
from luwu.launch.reports import ReportFunction
from luwu.models.gpt import generate

PROMPT_BYTES = 64


def evaluate(
    settings: Settings,
    model: torch.nn.Module,
    session: Session,
    text: Bytes,
    device: torch.device,
    report: ReportFunction,
) -> None:
    """Measure the model on the held-back `text` (uint8) and let it write; the results go to the launcher."""
    model.eval()
    loss_sum, sequences = validate(settings, model, session, text, device, report)
    if session.rank == 0:
        report({"kind": "stage", "text": "writing a sample", "detail": ""})
    prompt = choose_prompt(text)
    seq = settings.model.seq
    ids = torch.from_numpy(prompt.astype(np.int64)).to(device)
    written = generate(model, ids, settings.sample.length, seq, settings.sample.temperature, settings.run.seed)
    report(
        {
            "kind": "result",
            "loss_sum": loss_sum,
            "sequences": sequences,
            "prompt": bytes(prompt).decode(errors="replace"),
            "sample": bytes(written[len(prompt) :].tolist()).decode(errors="replace"),
        }
    )


@torch.no_grad()
def validate(
    settings: Settings,
    model: torch.nn.Module,
    session: Session,
    text: Bytes,
    device: torch.device,
    report: ReportFunction,
) -> tuple[float, int]:
    """This worker's share of the validation: its losses summed over sequences, and how many sequences it had.

    The windows are spread evenly over the text. In a pass without a sequence of its own a worker looks at another's
    and does not count it: it must pull as the others do.
    """
    seq, batch = settings.model.seq, settings.run.batch
    available = (len(text) - 1) // seq
    wanted = min(available, settings.data.validation_windows)
    windows = [index * available // wanted for index in range(wanted)]
    loss_sum, sequences = 0.0, 0
    for first in range(0, wanted, batch):
        together = windows[first : first + batch]
        own = together[share(len(together), session.rank, session.workers)]
        inputs, targets = cut(text, own or together[:1], seq)
        loss = model(torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)).loss.item()
        loss_sum += loss * len(own)
        sequences += len(own)
        if session.rank == 0:
            done = first + len(together)
            report({"kind": "stage", "text": "validating", "detail": f"{done} of {wanted} sequences"})
    return loss_sum, sequences


def choose_prompt(text: Bytes) -> Bytes:
    """The first whole, short line of held-back text that begins with a letter; without one, where the text begins."""
    head = bytes(text[: 256 * PROMPT_BYTES])
    for line in head.splitlines(keepends=True)[1:]:
        if line[:1].isalpha() and 8 <= len(line) <= PROMPT_BYTES and line.endswith(b"\n"):
            return np.frombuffer(line, dtype=np.uint8)
    return np.frombuffer(head[:PROMPT_BYTES], dtype=np.uint8)
