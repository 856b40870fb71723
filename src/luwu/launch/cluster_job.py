"""Nodes of a job that a cluster's engine runs, as a pure machine: an event gives the actions that follow.

It has no process, no thread and no clock: `luwu.launch.slurm` carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luwu.core.errors import ConfigError
from luwu.core.words import counted

LOWEST_SIGNAL_STATUS = 129
"""Exit status from which on a shell says that a signal ended a program: 128 and the signal's number."""


@dataclass(frozen=True)
class StartWorker:
    """Start the worker of this rank on a node, as the ``local_rank``-th of its workers."""

    rank: int
    node: str
    local_rank: int


@dataclass(frozen=True)
class Finish:
    """End what still runs, and the job with this exit status. ``why`` is for users; empty: all went well."""

    status: int
    why: str = ""


@dataclass(frozen=True)
class Requeue:
    """End what still runs, and let the engine start the job again: it goes on from the last commit."""

    why: str


Action = StartWorker | Finish | Requeue


class ClusterJob:
    """Decides which worker runs where, and what follows when one ends.

    A worker whose node is lost moves to a spare node. One that a signal has ended starts again where it was, because
    the others wait for it. One that ends with an error of its own ends the job.

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
                f"spare_nodes: expected 0 to {len(nodes) - 1} of {counted(len(nodes), 'node')}, found {spare_nodes}"
            )
        if server_node and server_node not in nodes:
            raise ConfigError(
                f"server_node: expected one of the job's nodes, found {server_node}; the job has {', '.join(nodes)}: "
                f"ask for it, for example with #SBATCH --nodelist={server_node}"
            )
        self.server_node = server_node or nodes[0]
        self.workers = workers_per_node * (len(nodes) - spare_nodes)
        self._nodes = list(nodes)
        self._workers_per_node = workers_per_node
        self._restarts = restarts
        self._places: dict[int, StartWorker] = {}  # of the workers that have not finished, by rank
        self._over = False

    def begin(self) -> list[Action]:
        """Start all workers."""
        for rank in range(self.workers):
            node, local_rank = divmod(rank, self._workers_per_node)
            self._places[rank] = StartWorker(rank, self._nodes[node], local_rank)
        return list(self._places.values())

    def worker_ended(self, rank: int, status: int, nodes: Sequence[str]) -> list[Action]:
        """Say what follows the end of a worker.

        Args:
            rank: the worker.
            status: its exit status, as a shell gives it. It says nothing where the worker's node is lost.
            nodes: names of the nodes that the job has now.
        """
        if self._over:
            return []
        place = self._places[rank]
        if place.node not in nodes:
            return self._move(place, nodes)
        if status == 0:
            del self._places[rank]
            return [] if self._places else self._end(Finish(0))
        if status < LOWEST_SIGNAL_STATUS:
            return self._end(Finish(status, f"worker {rank} on {place.node} ended with status {status}"))
        if not self._restarts:
            why = f"worker {rank} on {place.node} was killed (status {status}), and no restart is left"
            return self._end(Finish(status, why))
        self._restarts -= 1
        return [place]

    def server_ended(self, status: int, nodes: Sequence[str]) -> list[Action]:
        """Say what follows the end of the server, which nothing can go on without."""
        if self._over:
            return []
        if self.server_node not in nodes:
            return self._end(Requeue(f"{self.server_node}, the server's node, is lost"))
        return self._end(Finish(status or 1, f"the server on {self.server_node} ended with status {status}"))

    def time_is_over(self) -> list[Action]:
        """Say what follows the engine's warning that the job's time is nearly over."""
        return [] if self._over else self._end(Requeue("the job's time is over"))

    def _move(self, place: StartWorker, nodes: Sequence[str]) -> list[Action]:
        for node in nodes:
            taken = {other.local_rank for other in self._places.values() if other.node == node}
            free = sorted(set(range(self._workers_per_node)) - taken)
            if free:
                self._places[place.rank] = StartWorker(place.rank, node, free[0])
                return [self._places[place.rank]]
        return self._end(Requeue(f"{place.node} is lost, and no spare node is left for worker {place.rank}"))

    def _end(self, action: Finish | Requeue) -> list[Action]:
        self._over = True
        return [action]
