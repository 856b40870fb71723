"""Figures of a session of your own program for Prometheus, read when they are asked for."""

from __future__ import annotations

from typing import Any

from luwu.control.exposition import Exposition, Labelled, Table
from luwu.control.figures import SERVER, SESSION, WORKER_BEHIND
from luwu.core.errors import ServerError
from luwu.session.session import Session


def expose(session: Session, place: str) -> Exposition:
    """Answer Prometheus with the figures of a session, and of the server that it embeds, until it is closed.

    Args:
        session: of `luwu.open` or `luwu.connect`.
        place: HOST:PORT, or :PORT on this machine alone; port 0: the kernel chooses one, see `Exposition.port`.

    Raises:
        ConfigError: the package prometheus-client is not installed, or there is no such place. ServerError: it cannot
        listen there.
    """
    tables = [Table(SESSION, lambda: session_stats(session))]
    server = session.server
    if server is None:
        return Exposition(place, tables)
    tables.append(Table(SERVER, server.figures))
    return Exposition(place, tables, [Labelled(WORKER_BEHIND, "rank", server.behind)])


def session_stats(session: Session) -> dict[str, Any]:
    """Return a session's figures as `luwu.control.figures.SESSION` reads them; its counts alone without a model."""
    counts = {"step": session.step, "attempts": session.attempts, "rolled_back": session.rolled_back}
    try:
        return counts | session.endpoint.stats()
    except ServerError:  # no model yet
        return counts
