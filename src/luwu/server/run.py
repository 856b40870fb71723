"""A run on a network's server: a set of workers, the core that serves them, and the messages to them."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import Timeouts
from luwu.core.division import Share
from luwu.core.errors import ConfigError, LuwuError, ServerError
from luwu.core.manifest import Manifest
from luwu.core.protocols import LossScale
from luwu.server.cores import HyperParameters, NetworkCore, StepEnding
from luwu.server.membership import Membership, lost_meanwhile
from luwu.server.participants import Participant
from luwu.server.topology import NOWHERE, PacketOrigin, PlanTopology, SwitchMember, TopologyReady, worker_name
from luwu.store.run_record import Counts

DATA_TOKEN_BYTES = 32

OpenCore = Callable[[Manifest, int, Share, int], NetworkCore]
"""Function that opens the store for a manifest, a job, this server's share of it, and a number of workers."""

ClaimStore = Callable[[Counts], tuple[Counts, str]]
"""Function that gives a run the store. Takes the store's counts; returns the counts at its begin, and a message."""

log = logging.getLogger(__name__)


def claim_nothing(counts: Counts) -> tuple[Counts, str]:
    """Make no claim, for a program that does not name its run."""
    return Counts(), ""


class Terms(NamedTuple):
    """The terms of a run beside the model: every worker must come with the same.

    ``share``: this server's part of the job. ``kept``: over UDP, the blocks that a worker keeps on its device.
    ``jobs``: numbers of the runs that the worker has joined at all servers, in their order.
    """

    share: Share
    kept: frozenset[str] = frozenset()
    jobs: tuple[int, ...] = ()


@dataclass(eq=False, kw_only=True)
class Worker(Participant):
    """A worker that has joined a run. ``tenure``: see `Admission`."""

    rank: int
    run: Run
    tenure: int = 1
    place: PacketOrigin = NOWHERE


class Run(Membership[NetworkCore]):
    """Membership whose workers are told through their watches, and begin and commit here.

    ``last_attempt`` is the attempt after which a worker asked to stop; None: none did. ``claimant`` is the id of the
    run that has claimed the store, by which the launchers know it; empty: none has.

    Args:
        workers: number of workers that make a step, or the most of them.
        open_core: opens the store for the first worker's manifest, this job, this server's share of it, and the number
            of workers.
        timeouts: timeouts of the network.
        step_at_rest: reads the store's committed step while it is not open.
        worker_return_seconds: see `Membership`; a run does not wait whose workers keep blocks on their devices over
            UDP: another worker would pull what they do not.
        fewest: see `Admission`.
    """

    def __init__(
        self,
        workers: int,
        open_core: OpenCore,
        timeouts: Timeouts,
        step_at_rest: Callable[[], int] = lambda: 0,
        worker_return_seconds: float = 0.0,
        fewest: int | None = None,
    ) -> None:
        self.job = secrets.randbits(63)
        self._step_at_rest = step_at_rest
        self._terms: Terms | None = None
        self._jobs: tuple[int, ...] = ()
        super().__init__(
            workers,
            lambda manifest: open_core(manifest, self.job, self._share, self.workers),
            timeouts.gather_seconds,
            worker_return_seconds,
            self._say_to_all,
            fewest,
        )
        self.people: dict[int, Worker] = {}
        self.failed_at: float | None = None
        self._look_seconds = timeouts.look_seconds
        self._planning = threading.Lock()
        self._places: Mapping[str, pb.Topology] | None = None
        self._planned_switches: tuple[SwitchMember, ...] = ()
        self._where: dict[int, PacketOrigin] = {}  # that the places in the tree are planned with, by rank
        self._answering = threading.Lock()  # so that a worker is lost before or after a call of its, not within it
        self._telling = threading.Lock()  # so that a participant told later has a higher incarnation
        self._told: dict[str, int] = {}  # number of times each participant was told, by name
        self._claiming = threading.Lock()
        self._word = ""
        self.last_attempt: int | None = None
        self.claimant = ""

    def _say_to_all(self, text: str) -> None:
        log.warning("job=%x %s", self.job, text)
        self.notify(pb.Notice(text=text))

    def notify(self, notice: pb.Notice) -> None:
        """Tell all workers that are there something about the others."""
        for worker in list(self.people.values()):
            if not worker.ended:
                worker.tell(pb.Event(notice=notice))

    @property
    def step(self) -> int:
        """Committed steps of the store, open or not."""
        return super().step if self.opened else self._step_at_rest()

    @property
    def over(self) -> bool:
        """True if nobody may join any more: the run has failed, or the workers that had joined have gone."""
        return self.failed_at is not None or self.deserted

    @property
    def begun(self) -> bool:
        """True if every participant has a place in the tree."""
        return self._places is not None

    def needs(self, switch: SwitchMember) -> bool:
        """Return True if a switch has a place in the tree."""
        return self._places is not None and switch.name in self._places

    def add(self, rank: int, workers: int, peer: str) -> Worker:
        """Take a worker in; raises ConfigError where it does not fit."""
        tenure = self.join(rank, workers)
        worker = Worker(name=worker_name(rank), peer=peer, rank=rank, run=self, tenure=tenure)
        self.people[rank] = worker
        return worker

    def peer_of(self, rank: int) -> str:
        """Return the address of a worker."""
        worker = self.people.get(rank)
        return "" if worker is None else worker.peer

    def agree_on_jobs(self, jobs: tuple[int, ...]) -> None:
        """Compare the numbers of the runs of all servers that a worker has joined, in the servers' order.

        The worker has made sure that the servers have the parts of one job.

        Runs of several servers end together. Where another server has begun a new one, which has not the steps of this
        run, this run ends, too.

        Raises:
            ServerError: so it is.
        """
        if not self._jobs or jobs == self._jobs:
            return
        error = ServerError("another server of this job has begun a new run; run again to resume on all of them")
        self.fail(error)
        raise error

    def agree(self, terms: Terms) -> None:
        """Note a worker's terms, before `attach`; raises ConfigError where workers differ on them."""
        with self._changed:
            self._jobs = self._jobs or terms.jobs
            expected = self._terms = self._terms or terms
            if expected.kept:
                self.vacancies.seconds = 0.0
        self.agree_on_jobs(terms.jobs)
        if terms.share != expected.share:
            raise ConfigError(
                f"servers: expected {expected.share} as of the workers before, found {terms.share}; "
                "give every worker the same servers in the same order"
            )
        if terms.kept != expected.kept:
            name = min(terms.kept ^ expected.kept)
            raise ConfigError(
                f"device_memory: expected the same blocks on every worker's device, found that some keep {name} there "
                "and others do not; over UDP all pull alike: give every worker the same device_memory"
            )

    @property
    def under_way(self) -> bool:
        """True once all workers have been there together, and the store has first values."""
        with self._changed:
            return self._gathered and self._first_values

    @property
    def opened_share(self) -> Share | None:
        """This server's share of the job, where it is one of several and has its store open; else None."""
        share = self._share
        return share if share.servers > 1 and self.opened else None

    @property
    def _share(self) -> Share:
        return Share() if self._terms is None else self._terms.share

    def fail(self, error: LuwuError) -> None:
        """End the run, and tell every worker the reason. The first error counts."""
        super().fail(error)
        with self._changed:
            if self.failed_at is not None:
                return
            self.failed_at = time.monotonic()
        first = self.error() or error
        log.error("failed job=%x step=%d error=%s %s", self.job, self.step, type(first).__name__, first)
        for worker in list(self.people.values()):
            worker.tell(pb.Event(failure=pb.Failure(error=type(first).__name__, message=str(first))))

    def claim(self, claim: ClaimStore) -> tuple[Counts, str]:
        """Give this run the store; every worker gets the same message, whichever of them came first."""
        with self._claiming:
            first, word = claim(Counts.of(self.stats()))
            self._word = self._word or word
            return first, self._word

    def lose(self, rank: int, why: str = "ended without leaving") -> int | None:
        """Remove a worker that ended without leaving, see `Membership`.

        Of several servers each one tells its workers of an attempt that is void, and they tell the others.
        """
        with self._answering:
            voided = super().lose(rank, why)
        if voided is not None and self._share.servers > 1:
            self.notify(pb.Notice(void_attempt=voided))
        return voided

    @contextmanager
    def answering(self, worker: Worker) -> Iterator[None]:
        """Context manager: answer a call of a worker, which is not lost meanwhile. It must not take long.

        Raises:
            WorkerLostError: it was lost before. Another worker may be at its place already.
        """
        with self._answering:
            if not self.holds(worker.rank, worker.tenure):
                raise lost_meanwhile(worker.rank)
            yield

    def admit(self, rank: int) -> bytes:
        """Return a token that lets this rank into the data plane."""
        token = secrets.token_bytes(DATA_TOKEN_BYTES)
        with self.core() as core:
            core.allow_worker(rank, token)
        return token

    def note_place(self, worker: Worker, place: PacketOrigin) -> None:
        """Note where a worker sends its packets from, before it attaches."""
        worker.place = place
        with self._planning:
            if self._places is None and self.holds(worker.rank, worker.tenure):
                self._where[worker.rank] = place

    def send_topology(self, switches: Sequence[SwitchMember], address: str, plan: PlanTopology) -> None:
        """Tell all participants their place in the tree; the first call counts."""
        with self._planning:
            if self._places is not None:
                return
            self._planned_switches = tuple(switches)
            self._places = self._make_places(self._where, address, plan)
        for participant in (*self.people.values(), *switches):
            self.tell_place(participant)
        log.info("begins job=%x step=%d workers=%d switches=%d", self.job, self.step, self.workers, len(switches))

    def replace_in_tree(
        self, worker: Worker, switches: Callable[[], Sequence[SwitchMember]], address: str, plan: PlanTopology
    ) -> None:
        """Tell a worker that came for a lost one its place in the tree, and its neighbours where it is.

        ``switches`` returns those that are there; one that has ended is told when it comes back. It is asked when the
        new places are known, so none that comes back meanwhile is left with the old ones.

        Raises:
            ConfigError: the other workers would have to move.
        """
        with self._planning:
            before = self._places or {}
            where = self._where | {worker.rank: worker.place}
            places = self._make_places(where, address, plan)
            moved = {name for name in places if places[name] != before.get(name)}
            if any(other.name in moved for other in self.people.values() if other is not worker):
                raise ConfigError(
                    f"{worker.name}: it would move the other workers in the tree; start it with the same --switch as "
                    "the lost one"
                )
            self._places, self._where = places, where
        for participant in (*self.people.values(), *switches()):
            if participant is worker or participant.name in moved:
                self.tell_place(participant)

    def _make_places(
        self, where: Mapping[int, PacketOrigin], address: str, plan: PlanTopology
    ) -> Mapping[str, pb.Topology]:
        places = tuple(where[rank] for rank in range(self.workers))
        with self.core() as core:
            return plan(TopologyReady(self.job, self.workers, self._planned_switches, address, core.port, places, core))

    def tell_place(self, participant: Participant) -> None:
        """Tell one participant its place in the tree, if there is one already; a switch that came back asks again."""
        with self._telling:
            if self._places is None or participant.name not in self._places:
                return
            place = pb.Topology()
            place.CopyFrom(self._places[participant.name])
            place.incarnation = self._told.get(participant.name, 0)
            self._told[participant.name] = place.incarnation + 1
            participant.tell(pb.Event(topology=place))

    def begin(
        self,
        worker: Worker,
        groups: Sequence[HyperParameters],
        max_norm: float | None = None,
        loss_scale: LossScale | None = None,
    ) -> tuple[int, bool, int]:
        """Start a worker's attempt at a step.

        Returns the epoch; True if another worker has given the step up; and the attempts that have ended before.
        """
        with self._noting_failure(), self.answering(worker), self.core() as core:
            return core.begin(worker.rank, groups, max_norm, loss_scale)

    @property
    def trace_request(self) -> tuple[int, bool]:
        """Request for the workers' records of the attempt under way, see `luwu.core.trace.WorkerTrace`."""
        if not self.tracing.under_way:
            return 0, False
        with self.core() as core:
            self.tracing.note_packets(core.stats())
            return core.trace_request

    def commit(
        self,
        worker: Worker,
        roll_back: bool,
        pushes: int,
        goes_on: Callable[[], bool],
        before: Callable[[], None] = lambda: None,
    ) -> StepEnding | None:
        """End a worker's attempt. None: ``goes_on`` was False, so nobody waits any more.

        ``before`` is called while the worker is in the run, before its vote: no attempt ends without what it does.
        """
        with self._noting_failure():
            with self.answering(worker), self.core() as core:
                before()
                core.commit(worker.rank, roll_back, pushes)
            return self._wait(lambda core: core.wait_commit(worker.rank, self._look_seconds), goes_on)

    def decide(
        self, worker: Worker, ended: int, commits: bool | None, squares: float | None, goes_on: Callable[[], bool]
    ) -> StepEnding | None:
        """Commit or roll back the attempt that follows ``ended`` others, or with None make it void; as `commit`.

        An attempt is void at one server because it is at another. Where the worker has not voted on it, that returns
        at once.
        """
        with self._noting_failure():
            with self.answering(worker), self.core() as core:
                if commits is None:
                    core.annul(worker.rank, ended)
                else:
                    core.decide(worker.rank, ended, commits, squares)
            return self._wait(lambda core: core.wait_ended(worker.rank, self._look_seconds), goes_on)

    def _wait(self, look: Callable[[NetworkCore], StepEnding | None], goes_on: Callable[[], bool]) -> StepEnding | None:
        while goes_on():
            with self.core() as core:
                result = look(core)
            if result is not None:
                return result
            self.raise_if_ended()
        return None

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Context manager: keep an error of the native core for the other workers. Only here it has its class."""
        try:
            yield
        except LuwuError as error:
            if self._error is not None:  # the first failure: the native core may know it under another class
                raise type(self._error)(str(self._error)) from None
            if self.error() is not None:
                self.fail(error)
            raise
