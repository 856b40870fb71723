"""`luwu link`: answer a `luwu plan --measured --link-to` on another machine."""

from __future__ import annotations

from typing import Annotated

import typer


def link(
    listen: Annotated[str, typer.Option(help="HOST:PORT to listen at; port 0: the kernel chooses one")],
) -> None:
    """Let other machines measure the link to this one, until SIGTERM or Ctrl-C; prints HOST:PORT.

    `luwu plan --measured --link-to HOST:PORT` on another machine measures it. Whoever reaches the port may load the
    link for ten seconds at a time, so listen where only your machines do.

    Exit status: 0 stopped by a signal, 1 it could not listen, 2 an address that makes no sense.
    """
    import signal
    import sys

    from luwu.control.address import parse_host_port
    from luwu.core.errors import ServerError
    from luwu.launch.interrupts import SIGNALS
    from luwu.probe.link import LinkAnswerer

    place = parse_host_port(listen)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # threads inherit it, so the signal comes to this one
    try:
        answerer = LinkAnswerer(place)
    except OSError as error:
        raise ServerError(f"link: expected to listen at {place}, found: {error.strerror or error}") from None
    with answerer:
        sys.stdout.write(f"{answerer.address}\n")
        sys.stdout.flush()
        signal.sigwait(SIGNALS)
