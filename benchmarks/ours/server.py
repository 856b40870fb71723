"""A server on its own, without torch. A sample is the server's counters.

Settings: run, memory, workers, durable, snapshots (every, keep), patience (seconds that it waits for another worker,
and that a worker may hang), metrics (a place for Prometheus, whose URL is in each sample).
"""

from __future__ import annotations

from pathlib import Path

from kit.child import serve, settings, take_stdout

from luwu.control.exposition import Exposition, Table
from luwu.control.figures import SERVER
from luwu.core.durability import parse_durable
from luwu.core.quantities import parse_size
from luwu.server.laggards import Patience
from luwu.server.server import LocalServer
from luwu.store.settings import NO_SNAPSHOTS, Snapshots


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    snapshots = Snapshots(*wanted.get("snapshots", NO_SNAPSHOTS))
    memory = parse_size(wanted["memory"])
    patience = Patience(*wanted.get("patience", ()))
    durable = parse_durable(wanted.get("durable", "step"))
    run = Path(wanted["run"])
    with (
        LocalServer(
            run, None, memory, wanted["workers"], snapshots=snapshots, patience=patience, commit_points=durable
        ) as server,
        Exposition(wanted.get("metrics", ""), [Table(SERVER, server.figures)]) as exposition,
    ):
        serve(replies, lambda: dict(server.stats(), metrics=exposition.url))


if __name__ == "__main__":
    main()
