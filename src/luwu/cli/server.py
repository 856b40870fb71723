"""`luwu server`: serve a store to workers on other machines, one run after another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from luwu.cli.setting_flags import Given, setting_flags
from luwu.server.settings import ServerFile

if TYPE_CHECKING:
    import logging

    from luwu.control.credentials import Credentials
    from luwu.control.timeouts import Timeouts
    from luwu.server.settings import ServerSettings

TOGETHER_SECONDS = 5.0
"""Signals within this time count as one: an engine may send one to the launcher, and the launcher another."""


@setting_flags(ServerFile)
def server(
    config: Annotated[Path | None, typer.Option(help="TOML file with [server] and [timeouts]")] = None,
    *,
    given: Given,
    url_file: Annotated[Path | None, typer.Option(help="write the server's URL here once it listens")] = None,
) -> None:
    """Serve a store to workers on other machines, until SIGTERM or Ctrl-C.

    Prints the URL that workers connect to; the log goes to standard error. When all workers have left, or one was lost,
    the next set may join and continues at the last commit. A server that is stopped puts what its memory has on the
    disk first; where that waits for room, a second signal after five seconds gives it up.

    Exit status: 0 stopped by a signal, 1 it could not listen or use its folders, 2 settings that cannot work.
    """
    serve(config, given, url_file)


def serve(config: Path | None, flags: Given, url_file: Path | None) -> None:
    """Settle the settings, serve, and print the URL."""
    import signal
    import time

    from luwu.cli.service import prepare
    from luwu.core.settings import build, read_toml
    from luwu.launch.interrupts import SIGNALS
    from luwu.server.network import NetworkServer

    settings = build(ServerFile, read_toml(config) if config else {}, flags)
    wanted = settings.server
    credentials, log = prepare(wanted, "luwu.server")

    stops_since: float | None = None

    def told_again() -> bool:
        """Return True if another signal came after the first; one that came with it, as Slurm's do, is dropped."""
        if stops_since is None:
            return False
        number = signal.sigtimedwait(SIGNALS, 0)
        return number is not None and number.si_signo in SIGNALS and time.monotonic() - stops_since > TOGETHER_SECONDS

    if wanted.standby_of:
        followed = follow(wanted, credentials, settings.timeouts, log, lambda url: tell_url(url, url_file))
        if followed is None:
            return
        wanted = followed
    with NetworkServer(wanted, credentials, settings.timeouts, gives_up=told_again) as network:
        workers = f"{wanted.min_workers}-{wanted.workers}" if wanted.min_workers else str(wanted.workers)
        log.info(
            "serves %s stores=%s workers=%s durable=%r aggregate=%r",
            network.url,
            ",".join(wanted.stores),
            workers,
            wanted.durable,
            wanted.aggregate,
        )
        if not wanted.standby_of:
            tell_url(network.url, url_file)
        number = signal.sigwait(SIGNALS)
        stops_since = time.monotonic()
        log.info("stops signal=%s step=%d", signal.Signals(number).name, network.step)
    log.info("stopped")


def tell_url(url: str, url_file: Path | None) -> None:
    """Print the URL, and write it to the file."""
    import sys

    from luwu.core.files import replace_text

    if url_file is not None:
        replace_text(url_file, f"{url}\n")
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


def follow(
    wanted: ServerSettings,
    credentials: Credentials,
    timeouts: Timeouts,
    log: logging.Logger,
    say: Callable[[str], None],
) -> ServerSettings | None:
    """Follow a server until a signal comes, None, or the standby takes over: the settings to serve with.

    A standby that took over before serves at once.
    """
    import signal

    from luwu.launch.interrupts import SIGNALS
    from luwu.server.standby import Standby, serves_itself

    if serves_itself(wanted, credentials, timeouts):
        log.warning("serves: %s has not taken over from this store since", wanted.standby_of)
        return wanted.model_copy(update={"standby_of": ""})
    with Standby(wanted, credentials, timeouts) as standby:
        log.info("follows %s at=%s stores=%s", wanted.standby_of, standby.url, ",".join(wanted.stores))
        say(standby.url)
        while not standby.taken_over:
            number = signal.sigtimedwait(SIGNALS, timeouts.signal_check_seconds)
            standby.raise_if_refused()
            if number is not None and number.si_signo in SIGNALS:  # after SIGCONT CPython 3.11 returns any number
                log.info("stops signal=%s step=%d", signal.Signals(number.si_signo).name, standby.step)
                return None
    return wanted.model_copy(update={"listen": standby.listens_at})
