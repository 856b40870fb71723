"""`luwu status`: the step of a run, what each worker does, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from luwu.cli.setting_flags import option_of
from luwu.cli.terminal import AsJson, say, say_json
from luwu.control.credentials import CredentialSettings
from luwu.control.timeouts import TIMEOUTS
from luwu.core.aggregation import MEAN
from luwu.core.exits import Exit
from luwu.core.words import counted
from luwu.launch.machine_words import machine_text

if TYPE_CHECKING:
    from luwu.control import control_pb2 as pb
    from luwu.store.run_record import Counts


def status(
    where: Annotated[str, typer.Argument(help="luwu://HOST:PORT of a server, or a run folder of this machine")],
    as_json: AsJson = False,
    key_file: Annotated[Path | None, option_of(CredentialSettings, "key_file")] = None,
    tls_cert: Annotated[Path | None, option_of(CredentialSettings, "tls_cert")] = None,
    tls_key: Annotated[Path | None, option_of(CredentialSettings, "tls_key")] = None,
    tls_ca: Annotated[Path | None, option_of(CredentialSettings, "tls_ca")] = None,
) -> None:
    """Show a run that is under way: its step, what each worker does, and who waits for whom.

    Steps are the run's own where its folder is given and its store is on this machine; else, and in JSON, the store's.
    Asking disturbs nobody. Of several servers, ask any one: workers tell each what they do.

    Exit status: 0 the run is under way or waits for its workers, 1 it has failed or nobody answers, 2 arguments that
    cannot work.
    """
    from luwu.control.address import SCHEME
    from luwu.control.credentials import find_credentials, tls_files
    from luwu.launch.asking import ask_run
    from luwu.launch.first_counts import first_counts_of

    credentials = find_credentials(key_file=key_file, tls=tls_files(tls_cert, tls_key, tls_ca))
    reply = ask_run(where, credentials if where.startswith(SCHEME) else None)
    if as_json:
        say_json(record_of(reply))
    else:
        for line in lines_of(reply, first_counts_of(where)):
            say(line)
    if reply.failure:
        raise typer.Exit(Exit.FAILED)


def record_of(reply: pb.StatusReply) -> dict[str, Any]:
    """Return the status as JSON can hold it: the fields of StatusReply, without its proof."""
    from luwu.control.status import facts_of

    return {
        "open": reply.open,
        **facts_of(reply),
        "unwritten": reply.unwritten,
        "present": [_worker_record(worker) for worker in reply.present],
        "switches": [
            {"name": each.name, "address": each.address, "parent": each.parent, "link": _link_record(each)}
            for each in reply.switches
        ],
        "standby": _standby_record(reply.standby) if reply.HasField("standby") else None,
    }


def _standby_record(standby: pb.StandbyStatus) -> dict[str, Any]:
    return {field.name: getattr(standby, field.name) for field in standby.DESCRIPTOR.fields}


def _link_record(told: pb.SwitchStatus | pb.ProgressRequest) -> dict[str, Any] | None:
    from luwu.control.link_counts import facts_of_link

    return facts_of_link(told.link) if told.HasField("link") else None


def _worker_record(worker: pb.WorkerStatus) -> dict[str, Any]:
    from luwu.core.progress import WorkerPhase

    told = worker.progress
    progress = {
        "attempts": told.attempts,
        "phase": WorkerPhase(told.phase).name.lower(),
        "block": told.block,
        "acquired": told.acquired,
        "pushed": told.pushed,
        "place": told.place,
        "memory_bytes": told.memory_bytes,
        "heard_seconds": worker.heard_seconds,
        "link": _link_record(told),
    }
    return {
        "rank": worker.rank,
        "peer": worker.peer,
        "behind_seconds": worker.behind_seconds,
        "progress": progress if worker.HasField("progress") else None,
    }


def lines_of(reply: pb.StatusReply, first: Counts | None = None) -> Iterator[str]:
    """Return the status as text, a line at a time.

    Args:
        reply: the server's answer; its counts are the store's.
        first: the store's counts at which the run began in it; None: they are not known, and the store's are shown.
    """
    step, attempts, rolled_back = reply.step, reply.attempts, reply.rolled_back
    if first is not None:
        step, attempts = max(0, step - first.step), max(0, attempts - first.attempts)
        rolled_back = max(0, rolled_back - first.rolled_back)
    whose = " of the store" if first is None and step else ""
    yield f"step {step:,}{whose}{f', {attempts:,} attempts, {rolled_back:,} rolled back' if reply.open else ''}"
    if reply.unwritten:
        on_disk = max(0, step - reply.unwritten)
        yield f"last on the disk: step {on_disk:,}, {reply.since_commit_seconds:.0f} s ago"
    if reply.aggregate not in ("", MEAN):
        yield f"of the workers' gradients, element by element: {reply.aggregate}"
    if reply.failure:
        yield f"failed: {reply.failure}"
    if reply.pause:
        yield reply.pause
    if reply.HasField("standby"):
        yield from standby_words(reply.standby)
    if reply.standby.follows:
        return
    if not reply.present:
        yield f"no worker is here; a run has {reply.workers}"
    elif reply.missing:
        yield f"waits for {', '.join(f'worker {rank}' for rank in reply.missing)} to begin"
    for worker in reply.present:
        yield _line_of(worker)
    for switch in reply.switches:
        parent = f", below switch {switch.parent}" if switch.parent else ""
        link = f": {_link_words(switch.link)}" if switch.HasField("link") else ""
        yield f"{switch.name} at {switch.address}{parent}{link}"
    for machine in reply.machines:
        yield machine_text(machine.host, machine.peer, machine.ranks, machine.waits)
    behind = [worker for worker in reply.present if worker.behind_seconds >= TIMEOUTS.slow_worker_seconds]
    for worker in behind:
        yield (
            f"step {step + 1:,} waits for worker {worker.rank}, which has made no progress for "
            f"{worker.behind_seconds:.0f} s"
        )


def standby_words(standby: pb.StandbyStatus) -> Iterator[str]:
    """Return what a server or a standby says of the other one, a line at a time."""
    from luwu.core.units import bytes_text

    times = f"; a standby of this store has taken over {counted(standby.generation, 'time')}"
    generation = times if standby.generation else ""
    if standby.follows:
        state = "has every commit" if standby.in_sync else "has not been brought in sync; a commit of a run does that"
        link = "" if standby.connected else f", and is not connected ({standby.trouble or 'nobody knows why'})"
        yield f"standby of {standby.other}: {state}, the last is step {standby.step:,}{link}{generation}"
    elif standby.replaced:
        yield f"replaced: {standby.trouble}"
    elif not standby.other:
        yield generation.removeprefix("; ")
    else:
        state = "has not been brought in sync yet; a commit of a run does that"
        if standby.in_sync:
            state = "has every commit" if standby.connected else "no commit counts without it"
        yield f"standby {standby.other}: {state}, {bytes_text(standby.bytes)} sent{generation}"
        if not standby.connected:
            waits = f", and a commit waits for it since {standby.waits_seconds:.0f} s" if standby.waits_seconds else ""
            yield f"the standby is away ({standby.trouble or 'since this server was started'}){waits}"


def _line_of(worker: pb.WorkerStatus) -> str:
    from luwu.control.status import activity_of

    name = f"worker {worker.rank}{f' ({worker.peer})' if worker.peer else ''}"
    if not worker.HasField("progress"):
        return f"{name}: has joined, and has told nothing yet"
    told = worker.progress
    activity = activity_of(told)
    place = f"; its program is at {told.place}" if told.place else ""
    blocks = counted(told.pushed, "block")
    words = f"{name}: {activity}, {blocks} pushed in this step{place} ({worker.heard_seconds:.0f} s ago)"
    return f"{words}; {_link_words(told.link)}" if told.HasField("link") else words


def _link_words(link: pb.LinkCounts) -> str:
    from luwu.core.units import bytes_text

    words = f"received {bytes_text(link.received_bytes)}, sent {bytes_text(link.sent_bytes)}"
    if link.transport != "udp":
        return words
    return f"{words}, {link.packets_again:,} packets sent again, {link.packets_dropped:,} dropped"
