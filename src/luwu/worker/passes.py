"""A pass: the order in which units are pulled, as the last complete pass had it."""

from __future__ import annotations


class Pass:
    """Predicts the next pull from the order of the last complete pass.

    After a change it is wrong, but never harmful.
    """

    def __init__(self) -> None:
        self._order: list[int] = []
        self._before: list[int] = []
        self._seen: list[int] = []
        self._cursor = 0

    def start(self) -> None:
        """Begin again at the first pull."""
        self._seen = []
        self._cursor = 0

    def note(self, unit: int) -> int | None:
        """Record a pull, and return the unit expected next, if any."""
        self._seen.append(unit)
        try:
            self._cursor = self._order.index(unit, self._cursor) + 1
        except ValueError:
            self._cursor = len(self._order)
        return self.upcoming()

    def upcoming(self) -> int | None:
        """Return the unit expected next, if any."""
        return self._order[self._cursor] if self._cursor < len(self._order) else None

    def finish(self) -> None:
        """Take the recorded order as the one to expect from now on."""
        self._order = self._seen
        self.start()

    def forget(self) -> None:
        """Expect nothing until a pass is complete."""
        self._order = []
        self.start()

    def remember(self) -> None:
        """Note what is expected now."""
        self._before = self._order

    def revert(self) -> None:
        """Expect again the order of the last `remember`."""
        self._order = self._before
