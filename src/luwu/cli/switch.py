"""`luwu switch`: add up gradients and copy parameters between a server and its workers, one run after another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from luwu.core.settings import describe
from luwu.switch.settings import SwitchFile, SwitchSettings


def setting(name: str) -> Any:
    """A flag for one setting, explained in the setting's own words."""
    field, text = SwitchSettings.model_fields[name], describe("switch", name, SwitchFile)
    if field.default_factory is None and not field.is_required() and field.default not in (None, ""):
        text += f" ({field.default})"
    return typer.Option(f"--{name.replace('_', '-')}", help=text, show_default=False)


def switch(
    config: Annotated[Path | None, typer.Option(help="TOML file with [switch] and [timeouts]")] = None,
    server: Annotated[str | None, setting("server")] = None,
    listen: Annotated[str | None, setting("listen")] = None,
    name: Annotated[str | None, setting("name")] = None,
    fan_in: Annotated[int | None, setting("fan_in")] = None,
    xdp: Annotated[str | None, setting("xdp")] = None,
    user: Annotated[str | None, setting("user")] = None,
    parent: Annotated[str | None, setting("parent")] = None,
    key_file: Annotated[Path | None, setting("key_file")] = None,
    tls_cert: Annotated[Path | None, setting("tls_cert")] = None,
    tls_key: Annotated[Path | None, setting("tls_key")] = None,
    tls_ca: Annotated[Path | None, setting("tls_ca")] = None,
) -> None:
    """Serve as a switch of a server's tree, over the transport udp, until SIGTERM or Ctrl-C.

    Prints the HOST:PORT that it listens at; the log goes to standard error. When the server ends, the switch waits for
    the next one at the same address. Start a switch that died with the same name and --listen, and the run continues.

    Exit status: 0 stopped by a signal, 1 it could not listen or go on, or the kernel refused --xdp, 2 settings or a
    key that cannot work, or a place in the tree that is taken.

    With --xdp root has to start it. Before it listens it becomes --user and gives up all rights that XDP does not need.
    The kernel takes the program off the interfaces when this process ends, also after a crash.
    """
    given = {
        "server": server,
        "listen": listen,
        "name": name,
        "fan_in": fan_in,
        "xdp": xdp,
        "user": user,
        "parent": parent,
        "key_file": key_file,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_ca": tls_ca,
    }
    serve(config, {name: value for name, value in given.items() if value is not None})


def serve(config: Path | None, flags: dict[str, Any]) -> None:
    """Settle the settings, serve, and print the address."""
    import signal
    import sys

    from luwu.cli.service import prepare
    from luwu.core.settings import build, read_toml
    from luwu.launch.interrupts import SIGNALS
    from luwu.switch.privileges import give_up_root
    from luwu.switch.service import SwitchService

    settings = build(SwitchFile, read_toml(config) if config else {}, {"switch": flags})
    wanted, timeouts = settings.switch, settings.timeouts
    credentials, log = prepare(wanted, "luwu.switch")
    if wanted.xdp:
        give_up_root(wanted.user, credentials)
    with SwitchService(wanted, credentials, timeouts) as service:
        log.info("listens at=%s name=%s server=%s", service.address, wanted.name, wanted.server)
        for port, mode in service.xdp().get("ports", {}).items():
            log.info("xdp interface=%s mode=%s", port, mode)
        sys.stdout.write(f"{service.address}\n")
        sys.stdout.flush()
        while not service.wait(0):
            number = signal.sigtimedwait(SIGNALS, timeouts.look_seconds)
            # After SIGSTOP and SIGCONT, Python may return without a signal and with a random number.
            if number is not None and number.si_signo in SIGNALS:
                log.info("stops signal=%s", signal.Signals(number.si_signo).name)
                break
    log.info("stopped")
