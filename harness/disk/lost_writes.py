"""Loses each write of a step that was made again, although its sync succeeded, and judges what becomes of the store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from torch import Tensor

from harness.disk.looking import Store, look
from harness.disk.operations import Operation, model_manifest, stores_of, train, training
from harness.disk.power import History, Mark, Moment, State
from harness.disk.record import operation_named, record
from harness.disk.recorder import mark
from harness.disk.rot import Tally, judge_seen
from harness.disk.rotten_stores import Subject, intact_of, replace_by
from harness.small_models import loss_of


def _rolled_back_late(top: Path) -> None:
    """Train to step 3, whose first attempt is rolled back after chunks of it were written."""
    with training(top) as (session, model, optimizer):
        while session.step < 3:
            loss = loss_of(model, session.step)
            head = model.get_parameter("head.weight")
            bad = head.register_hook(_not_finite)  # the last gradient; the block before it is updated meanwhile
            if session.rolled_back > 0:
                bad.remove()
            loss.backward()
            optimizer.step()
            bad.remove()
        mark(f"is {session.wait_durable()}")


def _not_finite(gradient: Tensor) -> Tensor:
    return gradient * float("nan")


RETRIED = (
    Operation("rolled-back step", partial(train, until=2), _rolled_back_late),
    operation_named("reopen after a kill before a commit"),
    operation_named("reopen after a kill within a commit"),
)
"""Operations that make a step again: a gradient was not finite, or the process was killed."""


def recorded(place: int) -> History:
    """Return what one of `RETRIED` does to its folder; call it in a process of `recording_pool`."""
    return record(RETRIED[place]).history


def try_lost_writes(name: str, history: History, top: Path, tally: Tally) -> None:
    """Lose each write of an operation, look at the store as it was at each mark after that, and count what is found.

    Args:
        name: the operation's.
        history: what it did.
        top: an empty folder.
        tally: where it is counted.
    """
    # As if nothing were durable: so each write may be lost, whatever was synced.
    lossy = history.with_syncs(lambda sync: None)
    for each in history.marks:
        if each.text.startswith("is "):
            _try_at(name, lossy, each, top, tally)


def _try_at(name: str, history: History, at: Mark, top: Path, tally: Tally) -> None:
    moment = Moment(history, at.at)
    everything = frozenset(moment.pending)
    replace_by(top, moment.image(State(everything, "all is there")))
    store = Store(stores_of(top), model_manifest())
    intact = intact_of(store)
    subject = Subject(name, top, store, [], intact, {way: [] for way in intact})
    for place, path in _writes(history, everything):
        image = moment.image(State(everything - {place}, f"lost: {path}"))
        worst, why = judge_seen(subject, "chunks", intact["chunks"], [path]), ""
        for way, look_so in store.ways().items():
            replace_by(top, image)
            seen = look(look_so)
            verdict = judge_seen(subject, way, seen, [path])
            if verdict > worst:
                worst, why = verdict, f"{way}: {seen.said or seen.shown}"
        tally.add(f"lost write of a {name}", worst, f"{name}, at {at.text!r}, write {place} to {path}: {why}")


def _writes(history: History, among: frozenset[int]) -> Iterator[tuple[int, str]]:
    """Return the places of all changes that write bytes to a file of the store, with its path."""
    for place in sorted(among):
        change = history.changes[place]
        path = change.text.split(" ", 1)[1].lstrip("/")
        if change.data and "/store/" in path and not path.endswith("/lock"):
            yield place, path
