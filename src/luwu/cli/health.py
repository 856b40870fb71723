"""`luwu health`: ask a server whether it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from luwu.cli.setting_flags import option_of
from luwu.cli.terminal import AsJson, say, say_json
from luwu.control.credentials import CredentialSettings
from luwu.core.exits import Exit


def health(
    url: Annotated[str, typer.Argument(help="luwu://HOST:PORT of the server")],
    as_json: AsJson = False,
    tls_cert: Annotated[Path | None, option_of(CredentialSettings, "tls_cert")] = None,
    tls_key: Annotated[Path | None, option_of(CredentialSettings, "tls_key")] = None,
    tls_ca: Annotated[Path | None, option_of(CredentialSettings, "tls_ca")] = None,
) -> None:
    """Ask a server whether it serves; prints the answer.

    A server whose disk is full serves, and says `paused`: its run goes on when there is room.

    Exit status: 0 it serves, 1 it does not or does not answer, 2 arguments that cannot work.
    """
    from luwu.control.credentials import Credentials, find_credentials, tls_files
    from luwu.control.health import check_health

    tls = find_credentials(tls=tls_files(tls_cert, tls_key, tls_ca)).tls
    status = check_health(url, Credentials(tls=tls))
    if as_json:
        say_json({"url": url, "status": status})
    else:
        say(f"{url} {status}" + (": a disk is full; the server's log says which" if status == "paused" else ""))
    if status not in ("serving", "paused"):
        raise typer.Exit(Exit.FAILED)
