"""Switches that have joined a server, and lost ones that its run waits for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from luwu.control.timeouts import Timeouts
from luwu.control.waiting import until
from luwu.core.errors import ConfigError, ServerError, WorkerLostError
from luwu.server.participants import Participants
from luwu.server.run import Run
from luwu.server.topology import SwitchMember

log = logging.getLogger(__name__)


class SwitchMembers:
    """Keeps the switches of the present run. Functions may be called from any thread.

    Args:
        expected: number of switches that must have joined before a run begins.
        changed: condition of whoever keeps the runs; its lock guards this object, too.
        participants: all participants, switches among them.
        timeouts: how long a run waits for the first ones, and for one to return.
    """

    def __init__(
        self, expected: int, changed: threading.Condition, participants: Participants, timeouts: Timeouts
    ) -> None:
        self._expected = expected
        self._changed = changed
        self._participants = participants
        self._timeouts = timeouts
        self._present: dict[str, SwitchMember] = {}
        self._lost: dict[str, SwitchMember] = {}  # the run waits for them

    @property
    def present(self) -> list[SwitchMember]:
        """Switches that have joined, in that order."""
        with self._changed:
            return list(self._present.values())

    @property
    def lost(self) -> list[SwitchMember]:
        """Switches that have ended, and that the run waits for."""
        with self._changed:
            return list(self._lost.values())

    @property
    def missing(self) -> int:
        """Number of switches that have yet to join."""
        with self._changed:
            return max(0, self._expected - len(self._present))

    def forget_lost(self) -> None:
        """Wait for no lost switch any more: another run begins."""
        with self._changed:
            self._lost.clear()

    def join(self, switch: SwitchMember, run: Run) -> None:
        """Take a switch in; raises ConfigError if there is one of its name elsewhere.

        A switch that was started again takes its place again, even where the end of the one before was not noticed yet.
        """
        place = switch.address, switch.port
        with self._changed:
            present, before = self._present.get(switch.name), self._lost.get(switch.name)
            if present is not None and (present.address, present.port) != place:
                raise ConfigError(f"{switch.name} has joined already; give every switch a name of its own")
            if before is not None and (before.address, before.port) != place:
                raise ConfigError(
                    f"{switch.name} was at {before.address} port {before.port}, where its neighbours send to; "
                    f"found {switch.address} port {switch.port}: start it there again, with --listen"
                )
            if present is not None:
                present.ended = True
                error = WorkerLostError(f"{switch.name} was started again at the same place")
                self._participants.remove(present, error)
                present.end_watch()
            self._lost.pop(switch.name, None)
            self._present[switch.name] = switch
            self._participants.add(switch)
            run.tell_place(switch)
            self._changed.notify_all()
        log.info("joined %s peer=%s fan_in=%d", switch.name, switch.peer, switch.fan_in)

    def wait(self, run: Run, is_over: Callable[[], bool]) -> list[SwitchMember]:
        """Return the switches when all that are expected have joined.

        Raises:
            ServerError: they have not joined in time. LuwuError: the run has failed; ``is_over`` tells when to give up.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._present) >= self._expected or is_over(), self._timeouts.gather_seconds
            )
            if len(self._present) < self._expected:
                raise run.error() or ServerError(
                    f"switches: expected {self._expected}, found {len(self._present)} within "
                    f"{self._timeouts.gather_seconds:g} s; start the others, or lower --switches"
                )
            return list(self._present.values())

    def end(self, switch: SwitchMember, run: Run) -> None:
        """Note that a switch has ended. An open run waits for its return."""
        switch.ended_at = time.monotonic()
        with self._changed:
            self._present.pop(switch.name, None)
            if run.opened:
                self._lost[switch.name] = switch
            waits = run.needs(switch) and not run.over
        self._participants.remove(switch, WorkerLostError(f"{switch.name} {switch.end}; join again"))
        level = logging.INFO if switch.left else logging.ERROR
        log.log(level, "lost %s job=%x why=%r", switch.name, run.job, switch.end)
        if waits:
            back = until(self._timeouts.switch_return_seconds)
            log.warning("waiting job=%x for=%s to be started again %s", run.job, switch.name, back)

    def miss(self, run: Run, now: float) -> None:
        """Fail a run whose lost switch has not returned in time. A switch without a place in its tree is forgotten."""
        if not run.begun or run.over:
            return
        limit = self._timeouts.switch_return_seconds
        for switch in self.lost:
            if not run.needs(switch):
                with self._changed:
                    self._lost.pop(switch.name, None)
            elif now - switch.ended_at > limit:
                run.fail(
                    WorkerLostError(
                        f"{switch.name} ended and did not come back within {limit:g} s; start it and run again"
                    )
                )
