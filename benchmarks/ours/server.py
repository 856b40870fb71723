"""A server on its own, without torch. A sample is the server's counters.

Settings: run, memory, workers, snapshots (every, keep).
"""

from __future__ import annotations

from pathlib import Path

from kit.child import serve, settings, take_stdout

from luwu.core.quantities import parse_size
from luwu.server.server import LocalServer
from luwu.store.settings import NO_SNAPSHOTS, Snapshots


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    snapshots = Snapshots(*wanted.get("snapshots", NO_SNAPSHOTS))
    memory = parse_size(wanted["memory"])
    with LocalServer(Path(wanted["run"]), None, memory, wanted["workers"], snapshots=snapshots) as server:
        serve(replies, lambda: dict(server.stats()))


if __name__ == "__main__":
    main()
