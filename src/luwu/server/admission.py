"""The places of a run's workers before a step is begun, as a pure machine: a seat and an event give the next seat.

It lives before the store is open, so it is not the native step machine, which decides on a worker within a step. It has
no lock, no thread and no clock: `Membership` has them, and carries messages.
"""

from __future__ import annotations

from enum import Enum, auto

from luwu.core.words import counted


class Seat(Enum):
    """Standing of a worker's place in a run."""

    EMPTY = auto()  # nobody has come
    JOINED = auto()
    ATTACHED = auto()  # its worker uses the data plane, which serves each rank once
    GONE = auto()  # its worker joined and went before it attached
    LEFT = auto()  # its worker attached and went
    VACANT = auto()  # its worker is lost, and the run waits for another one


class SeatEvent(Enum):
    """Event of a worker's place."""

    JOIN = auto()  # a worker takes the place
    ATTACH = auto()  # it has a store, and may use the data plane
    GO = auto()  # it has left, or is lost and the run ends with it
    LOSE = auto()  # it is lost, and the run goes on
    WITHDRAW = auto()  # it joined, and its end came before it could do anything


_ALREADY = "worker {rank} has joined already; give every worker a rank of its own"
_SERVED = "worker {rank} has left this server; start the server again to train on"

TRANSITIONS: dict[tuple[Seat, SeatEvent], Seat | str] = {
    (Seat.EMPTY, SeatEvent.JOIN): Seat.JOINED,
    (Seat.JOINED, SeatEvent.JOIN): _ALREADY,
    (Seat.ATTACHED, SeatEvent.JOIN): _ALREADY,
    (Seat.GONE, SeatEvent.JOIN): Seat.JOINED,
    (Seat.LEFT, SeatEvent.JOIN): _SERVED,
    (Seat.VACANT, SeatEvent.JOIN): Seat.JOINED,
    (Seat.JOINED, SeatEvent.ATTACH): Seat.ATTACHED,
    (Seat.ATTACHED, SeatEvent.ATTACH): Seat.ATTACHED,
    (Seat.JOINED, SeatEvent.GO): Seat.GONE,
    (Seat.ATTACHED, SeatEvent.GO): Seat.LEFT,
    (Seat.GONE, SeatEvent.GO): Seat.GONE,
    (Seat.LEFT, SeatEvent.GO): Seat.LEFT,
    (Seat.VACANT, SeatEvent.GO): Seat.VACANT,
    (Seat.JOINED, SeatEvent.LOSE): Seat.VACANT,
    (Seat.ATTACHED, SeatEvent.LOSE): Seat.VACANT,
    (Seat.GONE, SeatEvent.LOSE): Seat.GONE,
    (Seat.LEFT, SeatEvent.LOSE): Seat.LEFT,
    (Seat.VACANT, SeatEvent.LOSE): Seat.VACANT,
    (Seat.JOINED, SeatEvent.WITHDRAW): Seat.EMPTY,
    (Seat.ATTACHED, SeatEvent.WITHDRAW): Seat.ATTACHED,
    (Seat.GONE, SeatEvent.WITHDRAW): Seat.GONE,
    (Seat.LEFT, SeatEvent.WITHDRAW): Seat.LEFT,
    (Seat.VACANT, SeatEvent.WITHDRAW): Seat.VACANT,
}
"""The next seat, or the text of a refusal, which changes nothing. An event without a row is an error of the code."""

_PRESENT = (Seat.JOINED, Seat.ATTACHED)
_SERVED_ONCE = (Seat.ATTACHED, Seat.LEFT)
_WENT = (Seat.GONE, Seat.LEFT)


class Admission:
    """The places of a run.

    Each worker that comes to a place has a *tenure* of it, a number from 1. A call of a lost worker may still be under
    way when another has come to its place; the tenure tells the two apart.

    Args:
        most: the most workers that it may have.
        fewest: the fewest; the first worker that joins says how many there are. None: there are ``most``.
    """

    def __init__(self, most: int, fewest: int | None = None) -> None:
        self._fewest, self._most = most if fewest is None else fewest, most
        self._seats = [Seat.EMPTY] * most
        self._tenures = [0] * most

    @property
    def workers(self) -> int:
        """The number of workers of the run; the most that it may have while nobody has come."""
        return len(self._seats)

    def join(self, rank: int, workers: int) -> str:
        """Take a worker in that counts ``workers`` in the run; return the text of a refusal, or an empty one."""
        came = any(seat is not Seat.EMPTY for seat in self._seats)
        allowed = workers == self.workers if came else self._fewest <= workers <= self._most
        if not allowed or not 0 <= rank < workers:
            return f"worker {rank} of {workers} cannot join: {self._expected(came=came)}"
        if not came:
            self._seats = [Seat.EMPTY] * workers
        refusal = self._happen(rank, SeatEvent.JOIN)
        if not refusal:
            self._tenures[rank] += 1
        return refusal

    def tenure(self, rank: int) -> int:
        """Return the tenure of the worker that joined last at a place; 0: none did."""
        return self._tenures[rank]

    def holds(self, rank: int, tenure: int) -> bool:
        """Return True while the worker with this tenure is in the run at this place."""
        return self._tenures[rank] == tenure and self._seats[rank] in _PRESENT

    def attach(self, rank: int, tenure: int) -> bool:
        """Note that a worker uses the data plane.

        Returns False where it has gone or was lost meanwhile; another may be at its place already.
        """
        if not self.holds(rank, tenure):
            return False
        self._happen(rank, SeatEvent.ATTACH)
        return True

    def go(self, rank: int) -> None:
        """Note that a worker has left or is lost."""
        self._happen(rank, SeatEvent.GO)

    def lose(self, rank: int) -> None:
        """Note that a worker is lost, and free its place for another one."""
        self._happen(rank, SeatEvent.LOSE)

    def withdraw(self, rank: int) -> bool:
        """Free the place of a worker that joined and did not attach; False where it attached, and so is in the run."""
        self._happen(rank, SeatEvent.WITHDRAW)
        return self._seats[rank] is Seat.EMPTY

    @property
    def joined(self) -> set[int]:
        """Workers that are in the run now."""
        return self._ranks(_PRESENT)

    @property
    def missing(self) -> list[int]:
        """Workers that the run still waits for to begin."""
        return sorted(set(range(len(self._seats))) - self._ranks(_SERVED_ONCE))

    @property
    def deserted(self) -> bool:
        """True if workers had joined, and all of them have gone."""
        return any(seat in (*_WENT, Seat.VACANT) for seat in self._seats) and not self.joined

    def went(self, rank: int) -> bool:
        """Return True if the worker of this rank has gone. A rank that the run does not have never came."""
        return rank in self._ranks(_WENT)

    def _expected(self, *, came: bool) -> str:
        if self._fewest == self._most:
            return f"this server was started for {counted(self._most, 'worker')}"
        if came:
            found = counted(self.workers, "worker")
            return f"this run has {found}, as its first one said; give every worker the same number"
        return f"this server was started for {self._fewest} to {self._most} workers"

    def _happen(self, rank: int, event: SeatEvent) -> str:
        following = TRANSITIONS[self._seats[rank], event]
        if isinstance(following, str):
            return following.format(rank=rank)
        self._seats[rank] = following
        return ""

    def _ranks(self, seats: tuple[Seat, ...]) -> set[int]:
        return {rank for rank, seat in enumerate(self._seats) if seat in seats}
