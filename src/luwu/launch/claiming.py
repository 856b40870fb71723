"""A run's identity for the store that it trains on: its id, and the claim that `luwu.store.run_record` compares."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from luwu.data.corpus import Corpus
from luwu.launch.folder import RunFolder
from luwu.launch.settings import Settings, fixed_values
from luwu.store.folders import ORIGIN_NAME
from luwu.store.run_record import Claim, Counts, RunRecord, claim_store, differences, read_record


def make_claim(
    settings: Settings, folder: RunFolder, run_id: str, corpus: Corpus | None = None, *, takes_weights: bool = False
) -> Claim:
    """Make the claim of a run; without a corpus, its data is not compared."""
    data = {}
    if corpus is not None:
        data = {
            "name": corpus.name,
            "train_tokens": corpus.train_tokens,
            "validation_tokens": corpus.validation_tokens,
            "vocabulary": corpus.vocabulary,
            "checksum": corpus.checksum,
            "tokenizer": corpus.sha256,
        }
    record = RunRecord(run_id, str(folder.path), settings=fixed_values(settings), data=data)
    return Claim(record, takes_weights, begun=folder.config_path.exists())


def find_run_id(settings: Settings, folder: RunFolder, store: Path | None) -> str:
    """Return the id in the run folder, else that of a run that this one replaces, else a new one.

    This run replaces the store's run if that one's folder on this machine is gone and its settings are the same.

    Args:
        settings: the run's settings.
        folder: the run's folder.
        store: the first folder of the run's store; None: the store is on another machine.
    """
    own = folder.saved_id()
    if own is not None:
        return own
    new = make_claim(settings, folder, uuid4().hex).run
    record = read_record(store) if store is not None else None
    if record is None or record.host != socket.gethostname() or differences(record, new):
        return new.id
    return new.id if RunFolder(Path(record.folder)).saved_id() == record.id else record.id


def claim_here(claim: Claim, store: Path, say: Callable[[str], None]) -> Callable[[Counts], Counts]:
    """Return the function with which a server of this process gives the run its store, see `LocalServer`."""

    def take(counts: Counts) -> Counts:
        first, word = claim_store(store, claim, counts, imported=(store / ORIGIN_NAME).exists())
        if word:
            say(word)
        return first

    return take
