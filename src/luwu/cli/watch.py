"""`luwu watch`: a page, or a terminal, that shows what runs do."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from luwu.cli.setting_flags import option_of
from luwu.cli.terminal import say
from luwu.control.credentials import CredentialSettings

if TYPE_CHECKING:
    from luwu.watch.runs import Places

DEFAULT_PLACE = "runs"


def watch(
    where: Annotated[
        list[str] | None,
        typer.Argument(help="run folders, folders of them, or luwu://HOST:PORT of servers; default: the folder runs"),
    ] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="show text here instead of a page")] = False,
    host: Annotated[str, typer.Option(help="address of the page; others than loopback need TLS")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port of the page; 0: a free one", min=0, max=65535)] = 7080,
    key_file: Annotated[Path | None, option_of(CredentialSettings, "key_file")] = None,
    tls_cert: Annotated[Path | None, option_of(CredentialSettings, "tls_cert")] = None,
    tls_key: Annotated[Path | None, option_of(CredentialSettings, "tls_key")] = None,
    tls_ca: Annotated[Path | None, option_of(CredentialSettings, "tls_ca")] = None,
) -> None:
    """Show what runs do: their curves, blocks, workers, disks and logs, live or after their end.

    The page has a URL with a token, which is printed. Runs do not know that they are watched. Ctrl-C ends it.

    Exit status: 0 it was ended, 1 the page could not listen, 2 arguments that cannot work. Where --terminal shows the
    runs once, because the output is no terminal: 0 shown, and that of the first run's error where none of them could be
    seen, 1 without an answer.
    """
    from luwu.control.credentials import find_credentials, tls_files
    from luwu.core.errors import ConfigError
    from luwu.watch.runs import Places

    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("tls: expected --tls-cert and --tls-key together, found one of them")
    tls = tls_files(tls_cert, tls_key, tls_ca) if tls_ca is not None else None
    places = Places(where or [DEFAULT_PLACE], find_credentials(key_file=key_file, tls=tls))
    if terminal:
        _show_here(places)
        return
    from luwu.watch.serving import serve

    with _until_ended():
        serve(places, host, port, None if tls_cert is None or tls_key is None else (tls_cert, tls_key), say)


@contextmanager
def _until_ended() -> Iterator[None]:
    """Context manager: Ctrl-C or SIGTERM ends what is inside, and is no error."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show_here(places: Places) -> None:
    """Show the runs until Ctrl-C or SIGTERM; where the output is no terminal, once.

    Raises:
        LuwuError: the one run cannot be seen. typer.Exit: none of several can; the text that was shown says why.
    """
    import sys
    import time

    from rich.live import Live
    from rich.text import Text

    from luwu.core.error_pages import pages
    from luwu.core.words import printable
    from luwu.watch.looks import Looks
    from luwu.watch.runs import LOOK_SECONDS
    from luwu.watch.terminal import text_of

    looks = Looks()
    if not sys.stdout.isatty():
        runs = places.runs()
        looks.look_for_rates(runs)
        unseen = [error for run in runs if (error := run.unseen) is not None]
        if len(runs) == 1 and unseen:
            raise unseen[0]
        say(text_of(runs))
        if unseen and len(unseen) == len(runs):
            raise typer.Exit(pages()[unseen[0].code].exit)
        return
    with _until_ended(), Live(auto_refresh=False) as live:
        while True:
            begun, runs = time.monotonic(), places.runs()
            looks.look(runs, LOOK_SECONDS)
            live.update(Text(printable(text_of(runs))), refresh=True)
            time.sleep(max(0.0, begun + LOOK_SECONDS - time.monotonic()))
