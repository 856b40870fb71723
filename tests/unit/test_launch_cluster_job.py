"""Nodes of an engine's job: where workers run, and what follows a loss, by tables and random histories."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from luwu.errors import ConfigError
from luwu.launch.cluster_job import (
    DOUBT_SECONDS,
    LAUNCH_SECONDS,
    RESTART_SECONDS,
    ClusterJob,
    Finish,
    Requeue,
    StartWorker,
    Wait,
)

NODES = ["a", "b", "c", "d"]
KILLED, UNREACHABLE = 137, 233


def begun(nodes: list[str] = NODES, workers_per_node: int = 2, spare_nodes: int = 1, restarts: int = 1) -> ClusterJob:
    job = ClusterJob(nodes, workers_per_node, spare_nodes, "", restarts)
    job.begin()
    return job


def test_workers_fill_the_nodes_that_are_not_spare() -> None:
    job = ClusterJob(NODES, 2, 1, "", 0)
    assert (job.workers, job.server_node) == (6, "a")
    assert [(start.node, start.local_rank) for start in job.begin()] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1), ("c", 0), ("c", 1)
    ]  # fmt: skip
    assert ClusterJob(NODES, 1, 0, "c", 0).server_node == "c"


@pytest.mark.parametrize(
    ("spare", "server", "message"),
    [
        (4, "", "--spare-nodes: expected 0 to 3, because the job has 4 nodes and one must run workers, found 4; ask "
         "for more nodes"),
        (0, "e", "--server-node: expected one of the job's nodes, found e; the job has a, b, c, d: ask for it, "
         "for example with #SBATCH --nodelist=e"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_nodes_are_refused(spare: int, server: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ClusterJob(NODES, 1, spare, server, 0)
    assert str(refused.value) == message


def test_the_job_ends_well_with_its_last_worker() -> None:
    job = begun(["a"], 2, 0)
    assert job.worker_ended(1, 0, ["a"]) == []
    assert job.worker_ended(0, 0, ["a"]) == [Finish(0)]
    assert job.server_ended(0, ["a"]) == job.time_is_over() == job.stopped() == []  # the end of what still ran


def test_a_killed_worker_starts_again_where_it_was_as_often_as_is_allowed() -> None:
    job = begun()
    assert job.worker_ended(3, KILLED, NODES) == [StartWorker(3, "b", 1, RESTART_SECONDS)]
    assert job.pause_is_over(3, NODES) == [StartWorker(3, "b", 1)]
    assert job.worker_ended(0, KILLED, NODES) == [
        Finish(KILLED, "worker 0 on a was killed (status 137), and no restart is left")
    ]


def test_a_worker_whose_node_does_not_answer_takes_no_restart() -> None:
    """A node that shuts down ends its workers before Slurm notices that it is lost."""
    job = begun(restarts=0)
    assert job.worker_ended(3, UNREACHABLE, NODES) == [StartWorker(3, "d", 0)]
    job = begun(spare_nodes=0, restarts=0)
    assert job.worker_ended(3, UNREACHABLE, NODES) == [StartWorker(3, "b", 1, LAUNCH_SECONDS)]
    assert job.pause_is_over(3, ["a", "c", "d"]) == [Requeue("b is lost, and no spare node is left for worker 3")]


def test_an_error_while_the_server_does_not_answer_may_be_that_of_a_lost_node() -> None:
    why, left = "worker 1 on a ended with status 1", ["a", "b", "d"]

    def in_doubt() -> ClusterJob:
        job = ClusterJob(NODES, 2, 1, "c", 1)
        job.begin()
        job.worker_ended(2, KILLED, NODES)
        assert job.worker_ended(1, 1, NODES, server_answers=False) == [Wait(DOUBT_SECONDS)]
        assert job.worker_ended(4, KILLED, NODES) == job.worker_ended(3, 1, NODES, server_answers=False) == []
        assert job.pause_is_over(2, NODES) == []  # nothing starts meanwhile
        return job

    assert in_doubt().server_ended(KILLED, left) == [Requeue("c, the server's node, is lost")]
    assert in_doubt().server_ended(KILLED, NODES) == [Finish(KILLED, "the server on c ended with status 137")]
    assert in_doubt().doubt_is_over(NODES) == [Finish(1, why)]
    assert in_doubt().doubt_is_over(left) == [Requeue("c, the server's node, is lost")]
    assert begun().doubt_is_over(NODES) == []


def test_a_server_that_is_told_to_stop_leaves_the_job_to_the_engine() -> None:
    """Slurm tells all steps of a preempted job to stop, and queues it again; an end of ours would be the job's."""
    for status in (0, 143):
        job = begun()
        assert job.server_ended(status, NODES) == [Wait(DOUBT_SECONDS)]
        assert job.worker_ended(1, 143, NODES) == job.worker_ended(2, 1, NODES, server_answers=False) == []
        assert job.doubt_is_over(NODES) == [Finish(status or 1, f"the server on a ended with status {status}")]


def test_an_error_of_a_worker_ends_the_job_with_its_status() -> None:
    assert begun().worker_ended(4, 2, NODES) == [Finish(2, "worker 4 on c ended with status 2")]


def test_workers_of_a_lost_node_move_to_a_spare_one_whatever_their_status_says() -> None:
    job, left = begun(restarts=0), ["a", "c", "d"]
    assert job.worker_ended(3, 0, left) == [StartWorker(3, "d", 0)]
    assert job.worker_ended(2, KILLED, left) == [StartWorker(2, "d", 1)]
    assert job.worker_ended(3, 0, ["a", "c"]) == [Requeue("d is lost, and no spare node is left for worker 3")]


def test_a_worker_moves_to_the_place_of_one_that_has_finished() -> None:
    job, left = begun(spare_nodes=0), ["a", "b", "c"]
    job.worker_ended(3, 0, NODES)
    assert job.worker_ended(7, KILLED, left) == [StartWorker(7, "b", 1)]


def test_what_follows_the_end_of_the_server() -> None:
    assert begun().server_ended(0, ["b", "c", "d"]) == [Requeue("a, the server's node, is lost")]
    assert begun().server_ended(KILLED, NODES) == [Finish(KILLED, "the server on a ended with status 137")]
    assert begun().stopped() == [Finish(143, "stopped by a signal")]
    assert begun().time_is_over() == [Requeue("the job's time is over")]


def test_random_histories() -> None:
    """Two workers never have one place, and none starts on a lost node; a job that ends well has lost no worker."""
    ends = Counter[str]()
    for seed in range(5000):
        dice = random.Random(seed)
        nodes = NODES[: dice.randint(1, 4)]
        per_node, spare, restarts = dice.randint(1, 3), dice.randrange(len(nodes)), dice.randrange(3)
        job = ClusterJob(nodes, per_node, spare, "", restarts)
        places = {start.rank: start for start in job.begin()}
        finished, killed = set[int](), 0
        while True:
            if len(nodes) > 1 and dice.random() < 0.2:
                nodes = [node for node in nodes if node != dice.choice(nodes)]
            rank, status = dice.choice(list(places)), dice.choice([0, 0, 0, KILLED, 1] if seed % 2 else [0])
            place = places.pop(rank)
            here = place.node in nodes
            (action,) = job.worker_ended(rank, status, nodes) or [None]
            if action is None:
                assert here and status == 0
                finished.add(rank)
                continue
            if isinstance(action, StartWorker):
                assert action.rank == rank and action.node in nodes and action.local_rank < per_node
                killed += here
                assert not here or (status == KILLED and replace(action, pause_seconds=0.0) == place)
                assert all(
                    (other.node, other.local_rank) != (action.node, action.local_rank) for other in places.values()
                )
                if here:
                    assert job.pause_is_over(rank, nodes) == [place]
                places[rank] = replace(action, pause_seconds=0.0)
                continue
            if action == Finish(0):
                assert here and finished | {rank} == set(range(job.workers)) and not places
            elif isinstance(action, Requeue):
                assert not here
                taken = Counter(other.node for other in places.values())
                assert all(taken[node] == per_node for node in nodes)
            else:
                assert here and action.status == status != 0
            assert killed <= restarts
            assert job.worker_ended(rank, 0, nodes) == job.time_is_over() == job.server_ended(0, nodes) == []
            ends[type(action).__name__ + str(getattr(action, "status", ""))] += 1
            break
    assert set(ends) == {"Finish0", "Finish1", "Finish137", "Requeue"} and min(ends.values()) > 100, ends
