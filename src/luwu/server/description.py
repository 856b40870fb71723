"""Description of a run for `luwu status`: its steps, its workers, and who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luwu.control import control_pb2 as pb
from luwu.control.figures import SERVER
from luwu.core.errors import LuwuError
from luwu.core.room import RoomWait
from luwu.server.membership import Membership


def describe(run: Membership[Any], look: bool = False) -> pb.StatusReply:
    """Return the status of a run; with ``look`` also what its server does with each block, and its figures."""
    stats, error = run.stats(), run.error()
    pause = pause_of(run)
    attempts = stats.get("attempts", 0)
    behind = _behind(run, stats)
    reply = pb.StatusReply(
        open=run.opened,
        step=run.step,
        attempts=attempts,
        rolled_back=stats.get("rolled_back", 0),
        workers=run.workers,
        present=[_worker(run, rank, behind.get(rank, 0.0)) for rank in sorted(run.joined)],
        missing=run.missing,
        failure="" if error is None else str(error),
        unwritten=stats.get("unwritten", 0),
        since_commit_seconds=stats.get("since_commit_seconds", 0.0),
        pause="" if pause is None else str(pause),
    )
    if look and run.opened:
        _look(run, reply)
    return reply


def _look(run: Membership[Any], reply: pb.StatusReply) -> None:
    """Add the blocks and the figures of a run whose store is open; nothing where it closes meanwhile."""
    try:
        with run.core() as core:
            reply.blocks = core.look()
    except LuwuError:
        return
    reply.block_names.extend(run.block_names)
    stats = figures_of(run)
    for figure in SERVER:
        value = figure.read(stats)
        if value is not None:
            reply.figures[figure.full_name] = value


def _worker(run: Membership[Any], rank: int, behind_seconds: float) -> pb.WorkerStatus:
    status = pb.WorkerStatus(rank=rank, peer=run.peer_of(rank), behind_seconds=behind_seconds)
    told = run.progress.last(rank)
    if told is not None:
        (attempts, activity, place, memory, link), status.heard_seconds = told
        status.progress.CopyFrom(
            pb.ProgressRequest(
                attempts=attempts,
                phase=activity.phase.name,
                block=activity.block,
                acquired=activity.acquired,
                pushed=activity.pushed,
                place=place,
                memory_bytes=memory,
                link=link,
            )
        )
    return status


def pause_of(run: Membership[Any]) -> RoomWait | None:
    """Return the wait for room on a full disk, of a run's store or of its folder, that pauses it; None: none does."""
    found = run.stats().get("waits_for_room")
    return run.launcher_wait if found is None else RoomWait(*found)


def figures_of(run: Membership[Any]) -> dict[str, Any]:
    """Return the stats of a run's server as `luwu.control.figures.SERVER` reads them."""
    stats = run.stats()
    return stats | {
        "step": run.step,
        "paused": pause_of(run) is not None,
        "failures": int(run.error() is not None),
        "workers": run.workers,
        "workers_present": len(run.joined),
    }


def behind_of(run: Membership[Any]) -> dict[str, float]:
    """Return the seconds that others have waited for each worker of a run, by rank."""
    behind = _behind(run, run.stats())
    return {str(rank): behind.get(rank, 0.0) for rank in run.joined | behind.keys()}


def _behind(run: Membership[Any], stats: Mapping[str, Any]) -> dict[int, float]:
    """Return the seconds of the workers that others wait for; a full disk that pauses the run makes no laggards."""
    if pause_of(run) is not None:
        return {}
    return {laggard.rank: laggard.seconds for laggard in run.progress.laggards(stats.get("attempts", 0))}
