"""Nodes of a job that a cluster's engine runs, as a pure machine: an event gives the actions that follow.

It has no process, no thread and no clock: `luwu.launch.slurm` carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from luwu.core.errors import ConfigError
from luwu.core.exits import SIGNALLED, Exit
from luwu.core.words import counted

NOT_LAUNCHED = range(233, 241)
"""Exit statuses of srun when a node does not answer: the low 8 bits of Slurm's communication errors, 1001 to 1008."""

TOLD_TO_STOP = (0, 143)
"""Exit statuses of a server that got SIGTERM."""

RESTART_SECONDS = 1.0
"""Pause before a worker starts again. An engine that ends a job ends all of it within that time."""

LAUNCH_SECONDS = 10.0
"""Pause before another attempt at a node that did not answer."""

DOUBT_SECONDS = 600.0
"""Time in which an engine has noticed that a node is lost, or has ended a job whose processes it told to stop."""

WORKER_RETURN_SECONDS = 600.0
"""Time in which another worker must come to a lost one's place, unless a user says otherwise. Engines may be slow."""


@dataclass(frozen=True)
class StartWorker:
    """Start the worker of this rank on a node, as the ``local_rank``-th of its workers, after a pause.

    ``why`` is for users; empty: for the first time.
    """

    rank: int
    node: str
    local_rank: int
    pause_seconds: float = 0.0
    why: str = field(default="", compare=False)


@dataclass(frozen=True)
class Wait:
    """Call `ClusterJob.doubt_is_over` after this time."""

    seconds: float


@dataclass(frozen=True)
class Finish:
    """End what still runs, and the job with this exit status. ``why`` is for users; empty: all went well."""

    status: int
    why: str = ""


@dataclass(frozen=True)
class Requeue:
    """End what still runs, and let the engine start the job again: it goes on from the last commit."""

    why: str


Action = StartWorker | Wait | Finish | Requeue


class ClusterJob:
    """Decides which worker runs where, and what follows when one ends.

    A worker whose node is lost moves to a spare node. One that a signal has ended starts again where it was, because
    the others wait for it. One that ends with an error of its own ends the job. An error while the server does not
    answer may be that of a lost node, which the engine notices later; until then the job is in doubt, and nothing
    starts.

    Args:
        nodes: names of the nodes, in the engine's order. The last ones are the spare ones.
        workers_per_node: number of workers on each node that is not spare.
        spare_nodes: number of nodes that run nothing until another one is lost.
        server_node: name of the server's node; empty: the first one.
        restarts: the most restarts of workers that signals have ended, all together.

    Raises:
        ConfigError: the numbers or the names do not fit.
    """

    def __init__(
        self, nodes: Sequence[str], workers_per_node: int, spare_nodes: int, server_node: str, restarts: int
    ) -> None:
        if not 0 <= spare_nodes < len(nodes):
            raise ConfigError(
                f"--spare-nodes: expected 0 to {len(nodes) - 1}, because the job has {counted(len(nodes), 'node')} and "
                f"one must run workers, found {spare_nodes}; ask for more nodes"
            )
        if server_node and server_node not in nodes:
            raise ConfigError(
                f"--server-node: expected one of the job's nodes, found {server_node}; the job has {', '.join(nodes)}: "
                f"ask for it, for example with #SBATCH --nodelist={server_node}"
            )
        self.server_node = server_node or nodes[0]
        self.workers = workers_per_node * (len(nodes) - spare_nodes)
        self.over = False
        self._nodes = list(nodes)
        self._workers_per_node = workers_per_node
        self._restarts = restarts
        self._places: dict[int, StartWorker] = {}  # of the workers that have not finished, by rank
        self._in_doubt: Finish | None = None

    def begin(self) -> list[Action]:
        """Start all workers."""
        for rank in range(self.workers):
            node, local_rank = divmod(rank, self._workers_per_node)
            self._places[rank] = StartWorker(rank, self._nodes[node], local_rank)
        return list(self._places.values())

    def worker_ended(
        self, rank: int, status: int, nodes: Sequence[str], *, server_answers: bool = True
    ) -> list[Action]:
        """Say what follows the end of a worker.

        Args:
            rank: the worker.
            status: its exit status, as srun gives it. It says nothing where the worker's node is lost.
            nodes: names of the nodes that the job has now.
            server_answers: False: the server could not be reached just now.
        """
        if self.over or self._in_doubt:
            return []
        place = self._places[rank]
        if place.node not in nodes:
            return self._move_or_requeue(place, nodes)
        if status == 0:
            del self._places[rank]
            return [] if self._places else self._end(Finish(Exit.DONE))
        if status in NOT_LAUNCHED:
            why = f"{place.node} does not answer"
            return self._move(place, nodes, why) or [replace(place, pause_seconds=LAUNCH_SECONDS, why=why)]
        if status not in SIGNALLED:
            end = Finish(status, f"worker {rank} on {place.node} ended with status {status}")
            return self._end(end) if server_answers else self._doubt(end)
        if not self._restarts:
            why = f"worker {rank} on {place.node} was killed (status {status}), and no restart is left"
            return self._end(Finish(status, why))
        self._restarts -= 1
        why = f"it was killed (status {status}), {counted(self._restarts, 'restart')} left"
        return [replace(place, pause_seconds=RESTART_SECONDS, why=why)]

    def pause_is_over(self, rank: int, nodes: Sequence[str]) -> list[Action]:
        """Say what follows when the pause before a worker's start is over."""
        if self.over or self._in_doubt:
            return []
        place = self._places[rank]
        return [place] if place.node in nodes else self._move_or_requeue(place, nodes)

    def server_ended(self, status: int, nodes: Sequence[str]) -> list[Action]:
        """Say what follows the end of the server, which nothing can go on without."""
        if self.over:
            return []
        end = Finish(status or 1, f"the server on {self.server_node} ended with status {status}")
        if self.server_node in nodes and status in TOLD_TO_STOP:
            return self._doubt(end)  # the engine ends the job, and may queue it again: it was preempted
        return self._end_unless_lost(end, nodes)

    def doubt_is_over(self, nodes: Sequence[str]) -> list[Action]:
        """Say what follows when the engine has had its time."""
        return [] if self.over or not self._in_doubt else self._end_unless_lost(self._in_doubt, nodes)

    def time_is_over(self) -> list[Action]:
        """Say what follows the engine's warning that the job's time is nearly over."""
        return [] if self.over else self._end(Requeue("the job's time is over"))

    def stopped(self) -> list[Action]:
        """Say what follows the wish that the job end, by SIGTERM or Ctrl-C."""
        return [] if self.over else self._end(Finish(143, "stopped by a signal"))

    def _move(self, place: StartWorker, nodes: Sequence[str], why: str) -> list[Action]:
        """Start a worker on another node that has a place; return no action where there is none."""
        for node in nodes:
            taken = {other.local_rank for other in self._places.values() if other.node == node}
            free = sorted(set(range(self._workers_per_node)) - taken)
            if free and node != place.node:
                self._places[place.rank] = StartWorker(place.rank, node, free[0])
                return [replace(self._places[place.rank], why=why)]
        return []

    def _move_or_requeue(self, place: StartWorker, nodes: Sequence[str]) -> list[Action]:
        lost = f"{place.node} is lost"
        why = f"{lost}, and no spare node is left for worker {place.rank}"
        return self._move(place, nodes, lost) or self._end(Requeue(why))

    def _doubt(self, end: Finish) -> list[Action]:
        waits = self._in_doubt is not None
        self._in_doubt = end
        return [] if waits else [Wait(DOUBT_SECONDS)]

    def _end_unless_lost(self, end: Finish, nodes: Sequence[str]) -> list[Action]:
        lost = self.server_node not in nodes
        return self._end(Requeue(f"{self.server_node}, the server's node, is lost") if lost else end)

    def _end(self, action: Finish | Requeue) -> list[Action]:
        self.over = True
        return [action]
