"""`luwu server`: serve a store to workers on other machines, one run after another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from luwu.cli.terminal import help_of
from luwu.core.quantities import format_size
from luwu.core.settings import describe
from luwu.server.settings import ServerFile, ServerSettings


def setting(name: str, flag: str = "") -> Any:
    """A flag for one setting, explained in the setting's own words."""
    field, text = ServerSettings.model_fields[name], describe("server", name, ServerFile)
    if field.default_factory is None and not field.is_required() and field.default not in (None, ""):
        text += f" ({format_size(field.default) if name == 'memory' else field.default})"
    return typer.Option(flag or f"--{name.replace('_', '-')}", help=help_of(text), show_default=False)


def server(
    config: Annotated[Path | None, typer.Option(help="TOML file with [server] and [timeouts]")] = None,
    store: Annotated[list[Path] | None, setting("stores", "--store")] = None,
    workers: Annotated[int | None, setting("workers")] = None,
    memory: Annotated[str | None, setting("memory")] = None,
    listen: Annotated[str | None, setting("listen")] = None,
    data_port: Annotated[int | None, setting("data_port")] = None,
    advertise: Annotated[str | None, setting("advertise")] = None,
    transport: Annotated[str | None, setting("transport")] = None,
    plain_data: Annotated[bool, setting("plain_data", "--plain-data")] = False,
    udp_port: Annotated[int | None, setting("udp_port")] = None,
    form: Annotated[str | None, setting("form")] = None,
    multicast: Annotated[str | None, setting("multicast")] = None,
    switches: Annotated[int | None, setting("switches")] = None,
    optimizer_threads: Annotated[int | None, setting("optimizer_threads")] = None,
    snapshot_every: Annotated[int | None, setting("snapshot_every")] = None,
    snapshot_keep: Annotated[int | None, setting("snapshot_keep")] = None,
    disk_full_wait_seconds: Annotated[float | None, setting("disk_full_wait_seconds")] = None,
    key_file: Annotated[Path | None, setting("key_file")] = None,
    tls_cert: Annotated[Path | None, setting("tls_cert")] = None,
    tls_key: Annotated[Path | None, setting("tls_key")] = None,
    tls_ca: Annotated[Path | None, setting("tls_ca")] = None,
    url_file: Annotated[Path | None, typer.Option(help="write the server's URL here once it listens")] = None,
) -> None:
    """Serve a store to workers on other machines, until SIGTERM or Ctrl-C.

    Prints the URL that workers connect to; the log goes to standard error. When all workers have left, or one was lost,
    the next set may join and continues at the last commit.

    Exit status: 0 stopped by a signal, 1 it could not listen or use its folders, 2 settings that cannot work.
    """
    given = {
        "stores": tuple(store) if store else None,
        "workers": workers,
        "memory": memory,
        "listen": listen,
        "data_port": data_port,
        "advertise": advertise,
        "transport": transport,
        "plain_data": plain_data or None,
        "udp_port": udp_port,
        "form": form,
        "multicast": multicast,
        "switches": switches,
        "optimizer_threads": optimizer_threads,
        "snapshot_every": snapshot_every,
        "snapshot_keep": snapshot_keep,
        "disk_full_wait_seconds": disk_full_wait_seconds,
        "key_file": key_file,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_ca": tls_ca,
    }
    serve(config, {name: value for name, value in given.items() if value is not None}, url_file)


def serve(config: Path | None, flags: dict[str, Any], url_file: Path | None) -> None:
    """Settle the settings, serve, and print the URL."""
    import signal
    import sys

    from luwu.cli.service import prepare
    from luwu.core.files import replace_text
    from luwu.core.settings import build, read_toml
    from luwu.launch.interrupts import SIGNALS
    from luwu.server.network import NetworkServer

    settings = build(ServerFile, read_toml(config) if config else {}, {"server": flags})
    wanted = settings.server
    credentials, log = prepare(wanted, "luwu.server")
    with NetworkServer(wanted, credentials, settings.timeouts) as network:
        log.info("serves %s stores=%s workers=%d", network.url, ",".join(wanted.stores), wanted.workers)
        if url_file is not None:
            replace_text(url_file, f"{network.url}\n")
        sys.stdout.write(f"{network.url}\n")
        sys.stdout.flush()
        number = signal.sigwait(SIGNALS)
        log.info("stops signal=%s step=%d", signal.Signals(number).name, network.step)
    log.info("stopped")
