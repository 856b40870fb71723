"""Launchers on other machines, which run workers of a run, as the owner of the run's server sees them."""

from __future__ import annotations

from typing import NamedTuple, NoReturn, Protocol

from luwu.core.errors import ConfigError
from luwu.server.participants import LauncherMember


class Machine(NamedTuple):
    """A machine whose launcher has joined.

    Attributes:
        host: its name, as it says itself.
        peer: its address.
        ranks: workers that it runs and that have not done their work, ascending.
        waits: number of workers that it offers to run in the place of lost ones.
    """

    host: str
    peer: str
    ranks: tuple[int, ...]
    waits: int


class Launchers(Protocol):
    """The owner's side. Functions may be called from any thread, and raise errors of `luwu.errors`."""

    def join(self, launcher: LauncherMember) -> None:
        """Take a launcher in, which begins to watch now."""

    def offer(self, launcher: LauncherMember, workers: int) -> None:
        """Take a launcher's offer to run so many workers at the most."""

    def go(self, launcher: LauncherMember) -> None:
        """Note that a launcher has gone."""

    def machines(self) -> list[Machine]:
        """Return the machines of the launchers that have joined, in their order."""

    def read(self, name: str, offset: int) -> bytes:
        """Return the next bytes of a file that was named to launchers; none at its end."""

    def tell(self, launcher: LauncherMember, rank: int, report: str) -> float:
        """Take a report of a launcher's worker, as JSON; return the time of this machine's monotonic clock."""


class NoLaunchers:
    """A server that no launcher owns: it takes none in."""

    def join(self, launcher: LauncherMember) -> NoReturn:
        """Refuse a launcher."""
        raise ConfigError(
            "join: expected the address of a luwu train --listen, found a luwu server; give the address to "
            "luwu train --server, which starts all workers on one machine"
        )

    def offer(self, launcher: LauncherMember, workers: int) -> NoReturn:
        """Refuse an offer."""
        raise ConfigError(f"offer: expected none of {launcher.name}")

    def go(self, launcher: LauncherMember) -> None:
        """Do nothing: none was taken in."""

    def machines(self) -> list[Machine]:
        """Return nothing: none was taken in."""
        return []

    def read(self, name: str, offset: int) -> NoReturn:
        """Refuse, because no file was named."""
        raise ConfigError(f"file: expected none, found {name!r}")

    def tell(self, launcher: LauncherMember, rank: int, report: str) -> NoReturn:
        """Refuse, because no worker was given away."""
        raise ConfigError(f"worker {rank}: expected no launcher's report")


NO_LAUNCHERS = NoLaunchers()
