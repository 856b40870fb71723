"""`luwu standby`: give a server's standby up, or have a standby take over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from luwu.cli.setting_flags import option_of
from luwu.cli.terminal import say
from luwu.control.credentials import CredentialSettings

app = typer.Typer(name="standby", help="Give a server's standby up, or have a standby take over.", no_args_is_help=True)

Key = Annotated[Path | None, option_of(CredentialSettings, "key_file")]
Certificate = Annotated[Path | None, option_of(CredentialSettings, "tls_cert")]
CertificateKey = Annotated[Path | None, option_of(CredentialSettings, "tls_key")]
Authority = Annotated[Path | None, option_of(CredentialSettings, "tls_ca")]


@app.command("take-over")
def take_over(
    where: Annotated[str, typer.Argument(help="luwu://HOST:PORT of the standby, or its store's first folder")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="although its server is connected, and may lose the step under way")
    ] = False,
    key_file: Key = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    tls_ca: Authority = None,
) -> None:
    """Have a standby take over from its server, which must not serve any more.

    A standby that runs serves from then on at its own URL. One that does not run is started with luwu server
    afterwards. The server that was replaced never commits without its standby, and refuses workers as soon as it hears
    of the take-over.

    Exit status: 0 it has taken over, 1 it does not answer, 2 it may lack commits of its server.
    """
    from luwu.control.address import SCHEME
    from luwu.control.credentials import find_credentials, tls_files
    from luwu.control.standby import ask_to_take_over
    from luwu.server.standby_at_rest import take_over_at_rest

    if where.startswith(SCHEME):
        credentials = find_credentials(key_file=key_file, tls=tls_files(tls_cert, tls_key, tls_ca))
        say(f"{where} has taken over at step {ask_to_take_over(where, credentials, anyway=anyway):,}")
    else:
        take_over_at_rest(Path(where))
        say(f"{where} has taken over; start luwu server with it")


@app.command("release")
def release(
    where: Annotated[str, typer.Argument(help="luwu://HOST:PORT of the server, or its store's first folder")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="although the standby cannot be told: its server has ended for good")
    ] = False,
    key_file: Key = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    tls_ca: Authority = None,
) -> None:
    """Give a server's standby up, so that its commits count without it.

    The standby is told, and will not take over. One that cannot be told might: where its machine is lost for good, say
    so with --anyway. A store that no server has open is always released so.

    Exit status: 0 it is given up, 1 the server does not answer or the standby cannot be told, 2 there is no standby.
    """
    from luwu.control.address import SCHEME
    from luwu.control.credentials import find_credentials, tls_files
    from luwu.control.standby import ask_to_release
    from luwu.server.standby_at_rest import release_at_rest

    if where.startswith(SCHEME):
        credentials = find_credentials(key_file=key_file, tls=tls_files(tls_cert, tls_key, tls_ca))
        told = ask_to_release(where, credentials, anyway=anyway)
        say(f"the standby of {where} is given up{'' if told else '; it does not know'}")
    else:
        url = release_at_rest(Path(where), anyway=anyway)
        say(f"the standby {url} of {where} is given up; it does not know")
