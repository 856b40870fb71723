"""Work of a worker: it trains to the last step, then measures and samples the model."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from luwu.control.credentials import TlsFiles
from luwu.core.aggregation import require_even_shares
from luwu.core.errors import AttemptVoidError, DataError, LuwuError
from luwu.core.room import Room
from luwu.core.shares import even_share
from luwu.data.corpus import Corpus
from luwu.data.sampler import Sampler, mixed
from luwu.data.tokenizer import Tokens
from luwu.launch.checks import check_steps
from luwu.launch.folder import RunFolder
from luwu.launch.job import Job
from luwu.launch.last_attempts import AttemptPart, AttemptsByVote, LastAttempts, NotesAttempts
from luwu.launch.reports import ReportFunction, WarningRelay
from luwu.launch.settings import Settings
from luwu.optim.choosing import make_optimizer
from luwu.session.local import join
from luwu.session.session import Session
from luwu.store.run_record import Claim, Counts
from luwu.train.devices import choose_device
from luwu.train.evaluation import evaluate, validate
from luwu.train.model import RunModel, make_model
from luwu.train.stopping import StopAgreement, agreement_of
from luwu.train.worker import StopRequest

if TYPE_CHECKING:
    from luwu.session.remote_endpoint import RemoteEndpoint  # brings gRPC


def train(job: Job, rank: int, workers: int, stop: StopRequest, report: ReportFunction, room: Room) -> None:
    """Join the launcher's server, train, evaluate, leave. Typed errors are the caller's to report."""
    settings, folder = job.settings, Path(job.folder)
    corpus = Corpus.load(folder)
    if corpus is None:
        raise DataError(f"{folder / 'corpus.json'}: expected the corpus that the launcher prepared, found none")
    device = choose_device(settings, rank)
    logging.getLogger("luwu").addHandler(WarningRelay(report))
    session = find_session(job, rank, workers, report)
    session.room = room
    if rank == 0:
        report({"kind": "stage", "text": "opening the store, and writing its first values if it is new", "detail": ""})
    model = make_model(settings, session, device, corpus.vocabulary)
    if session.word:
        report({"kind": "say", "text": session.word})
    made = counts_of_run(session)
    check_steps(settings, made.step)
    report(
        {
            "kind": "start",
            "parameters": model.parameters,
            "worker_return_seconds": session.worker_return_seconds,
            "first_step": session.first.step,
            **asdict(made),
        }
    )
    sampler = Sampler(corpus.train, settings.model.seq, settings.run.batch, settings.run.seed)
    last_attempts = notes_of(job, session)
    agreement = agreement_of(job, session)
    trainer = Trainer(settings, model, session, sampler, corpus.validation, device, report, last_attempts, agreement)
    if made.step != job.validated_step:
        trainer.validate_again()
    stopped = False
    while not stopped and counts_of_run(session).step < settings.run.steps:
        stopped = trainer.run_step(stop)
    if stopped:
        report({"kind": "stopped"})
    else:
        evaluate(settings, model, session, corpus, device, report)
    session.close()  # only here: a worker that fails must not look as if it had left
    report({"kind": "left"})


def counts_of_run(session: Session) -> Counts:
    """The counts of this run alone: the store's counts less those at which the run began."""
    first = session.first
    return Counts(session.step - first.step, session.attempts - first.attempts, session.rolled_back - first.rolled_back)


def find_session(job: Job, rank: int, workers: int, report: ReportFunction) -> Session:
    """Join the launcher's server, or the one on the network that the launcher was told of."""
    if job.server is None:
        assert job.socket_path is not None
        return join(job.socket_path, rank, workers)
    from luwu.session.remote import connect  # brings gRPC, which a run on one machine does without

    tls = TlsFiles(*map(Path, job.server.tls)) if job.server.tls else None
    server = job.server
    session = connect(
        server.url,
        rank=rank,
        workers=workers,
        key_file=server.key_file,
        tls=tls,
        timeouts=server.timeouts(),
        plain_data=server.plain_data,
    )
    session.on_fenced = lambda other: report({"kind": "fenced", "rank": other})
    session.claim = Claim.from_json(job.claim) if job.claim is not None else None
    return session


def notes_of(job: Job, session: Session) -> NotesAttempts:
    """Return what keeps a worker's last attempts."""
    if job.joined:
        return AttemptsByVote(cast("RemoteEndpoint", session.endpoint).report_with_vote)
    return LastAttempts(RunFolder(Path(job.folder)).attempts_path(session.rank))


class Trainer:
    """Trainer that tries one step after another.

    All that a step depends on comes from the settings and the run's counts.
    """

    def __init__(
        self,
        settings: Settings,
        model: RunModel,
        session: Session,
        sampler: Sampler,
        held_back: Tokens,
        device: torch.device,
        report: ReportFunction,
        last_attempts: NotesAttempts,
        agreement: StopAgreement,
    ) -> None:
        require_even_shares(session.aggregate, settings.run.batch, session.workers, balance=settings.run.balance)
        self._report = report
        self._agreement = agreement
        self._last_attempts = last_attempts
        self._settings = settings
        self._module = model.module
        self._predict = model.predict
        self._held_back = held_back
        self._session = session
        self._sampler = sampler
        self._device = device
        self._optimizer = make_optimizer(settings.optimizer, model.module)
        self._ended = time.monotonic()  # end of the attempt before
        self._counts: tuple[int, ...] = ()  # sequences of each worker in that attempt, where they follow the speeds
        self._before: tuple[int, ...] = ()  # those of the division before
        self._scales = "float16" in (settings.run.dtype, *settings.run.block_dtypes.values())

    def run_step(self, stop: StopRequest) -> bool:
        """Try a step and report it; return True if it was the last because rank 0 was asked to stop."""
        session, run = self._session, self._settings.run
        began, moved = self._ended, session.endpoint.stats()
        made = counts_of_run(session)
        attempt, before = made.attempts, made.step
        lr = self._settings.optimizer.rate(before, run.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        making = time.monotonic()
        inputs, targets = self._sampler.rows_of(attempt, self._rows())
        data_seconds = time.monotonic() - making
        torch.manual_seed(int.from_bytes(mixed(run.seed, attempt, session.rank)[:8], "little"))
        loss = self._predict(torch.from_numpy(inputs).to(self._device), torch.from_numpy(targets).to(self._device)).loss
        # The server divides by the number of workers; a worker with more sequences than another must weigh more.
        share = loss * (len(inputs) * session.workers / run.batch)
        forward_ended = session.endpoint.stats()
        self._optimizer.scale(share).backward()
        backward_ended = session.endpoint.stats()
        if session.rank == 0 and stop.asked:
            self._agreement.propose(attempt)
        scale = self._optimizer.loss_scale if self._scales else None
        known: AttemptPart = {
            "attempt": attempt,
            "loss": loss.item(),
            "sequences": len(inputs),
            "tokens": inputs.size,
            "lr": lr,
            "loss_scale": scale,
        }
        self._note(known)
        try:
            self._optimizer.step()
        except AttemptVoidError:
            return False  # the run's counts are as before: the next call makes the same attempt
        step = counts_of_run(session).step
        committed = step > before
        words = {
            **known,
            "kind": "step",
            "step": step,
            "committed": committed,
            "grad_norm": self._optimizer.last_grad_norm,
            "data_seconds": data_seconds,
            "waits": waits_between(moved, forward_ended, backward_ended),
            **self._times_since(began, moved),
        }
        last = self._agreement.is_last(attempt)
        if committed and not last:
            validating = time.monotonic()
            words["validation"] = self._validate_if_due()
            self._ended += time.monotonic() - validating
        self._report(words)
        return last

    def _rows(self) -> slice:
        """Return this worker's rows of the next attempt's batch."""
        session, run = self._session, self._settings.run
        if not run.balance:
            return even_share(run.batch, session.rank, session.workers)
        divided = session.divide_batch(run.batch)
        if divided.counts != self._counts:
            if session.rank == 0 and self._counts:
                words = ", ".join(map(str, divided.counts))
                why = "again: the other gained nothing" if divided.counts == self._before else "by their speeds"
                self._report({"kind": "say", "text": f"the workers now take {words} sequences a step, {why}"})
            self._before, self._counts = self._counts, divided.counts
        return divided.rows

    def _times_since(self, began: float, before: Mapping[str, Any]) -> dict[str, Any]:
        """The times and bytes of `StepReport` at the end of an attempt, from the endpoint's counts at its beginning."""
        now = self._session.endpoint.stats()
        self._ended = time.monotonic()
        return {
            "began": began,
            "ended": self._ended,
            "waited_seconds": now["wait_seconds"] - before["wait_seconds"],
            "busy_seconds": now["busy_seconds"] - before["busy_seconds"],
            "bytes_pulled": now["bytes_pulled"],
            "bytes_pushed": now["bytes_pushed"],
        }

    def _note(self, known: AttemptPart) -> None:
        """Note the data for this attempt's row, because this worker may end after its vote and before its report."""
        session = self._session
        stats = session.endpoint.stats()
        try:
            self._last_attempts.note(
                {
                    **known,
                    "workers": session.workers,
                    "step": counts_of_run(session).step,
                    "bytes_pulled": stats["bytes_pulled"],
                    "bytes_pushed": stats["bytes_pushed"],
                }
            )
        except OSError as error:
            raise LuwuError(
                f"run folder: expected to note attempt {known['attempt']} in it, found: {error}; mend the disk and run "
                "again, which goes on from the last commit"
            ) from error

    def validate_again(self) -> None:
        """Measure the validation after the last step again, if it was due: it may not have come to its end before."""
        step = counts_of_run(self._session).step
        share = self._validate_if_due() if step else None
        if share is not None:
            self._report({"kind": "validated", "step": step, "loss_sum": share[0], "sequences": share[1]})
            self._ended = time.monotonic()

    def _validate_if_due(self) -> tuple[float, int] | None:
        """Validate on this worker's share in the middle of training, if it is time; no random number is drawn.

        All workers stand at the same step, so they pull together here as well. After the last step comes `evaluate`,
        and the launcher writes its loss into the last row.
        """
        step, run = counts_of_run(self._session).step, self._settings.run
        if not run.eval_every or step % run.eval_every or step >= run.steps:
            return None
        training = self._module.training
        self._module.eval()
        try:
            return validate(self._settings, self._predict, self._session, self._held_back, self._device)
        finally:
            self._module.train(training)


def waits_between(*stats: Mapping[str, Any]) -> list[float]:
    """Return the seconds that a worker stood still for the server between each two of its endpoint's stats."""
    return [after["wait_seconds"] - before["wait_seconds"] for before, after in pairwise(stats)]
