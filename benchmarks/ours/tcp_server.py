"""A server of TCP on its own, without torch. A sample is its step. Settings: run, memory, workers, key."""

from __future__ import annotations

from pathlib import Path

from kit.child import serve, settings, take_stdout

from luwu.control.credentials import Credentials
from luwu.core.quantities import parse_size
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings


def main() -> None:
    """Serves until told to stop; the URL is in the file `url` of the run's folder once it listens."""
    replies = take_stdout()
    wanted = settings()
    run = Path(wanted["run"])
    described = ServerSettings(
        stores=(run / "store",), workers=wanted["workers"], listen="127.0.0.1:0", memory=parse_size(wanted["memory"])
    )
    with NetworkServer(described, Credentials(wanted["key"].encode())) as server:
        (run / "url.new").write_text(server.url)
        (run / "url.new").replace(run / "url")
        serve(replies, lambda: {"step": server.step})


if __name__ == "__main__":
    main()
