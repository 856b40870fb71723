"""A server on its own, without torch. Settings: run, memory, workers. A sample is the server's counters."""

from __future__ import annotations

from pathlib import Path

from child import serve, settings, take_stdout

from luwu.config import parse_size
from luwu.server.server import LocalServer


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    with LocalServer(Path(wanted["run"]), None, parse_size(wanted["memory"]), wanted["workers"]) as server:
        serve(replies, lambda: dict(server.stats()))


if __name__ == "__main__":
    main()
