"""`luwu switch`: add up gradients and copy parameters between a server and its workers, one run after another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from luwu.cli.setting_flags import Given, setting_flags
from luwu.switch.settings import SwitchFile


@setting_flags(SwitchFile)
def switch(
    config: Annotated[Path | None, typer.Option(help="TOML file with [switch] and [timeouts]")] = None,
    *,
    given: Given,
) -> None:
    """Serve as a switch of a server's tree, over the transport udp, until SIGTERM or Ctrl-C.

    Prints the HOST:PORT that it listens at; the log goes to standard error. When the server ends, the switch waits for
    the next one at the same address. Start a switch that died with the same name and --listen, and the run continues.

    Exit status: 0 stopped by a signal, 1 it could not listen or go on, or the kernel refused --xdp, 2 settings or a
    key that cannot work, or a place in the tree that is taken.

    With --xdp root has to start it. Before it listens it becomes --user and gives up all rights that XDP does not need.
    The kernel takes the program off the interfaces when this process ends, also after a crash.
    """
    serve(config, given)


def serve(config: Path | None, flags: Given) -> None:
    """Settle the settings, serve, and print the address."""
    import signal
    import sys

    from luwu.cli.service import prepare
    from luwu.core.settings import build, read_toml
    from luwu.launch.interrupts import SIGNALS
    from luwu.switch.privileges import give_up_root
    from luwu.switch.service import SwitchService

    settings = build(SwitchFile, read_toml(config) if config else {}, flags)
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
