"""Division of a model's blocks among several servers, the same for every worker that asks."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from luwu.core.errors import ConfigError, ManifestMismatchError
from luwu.core.manifest import BlockManifest, Manifest

PIECE_STEP = 2048
"""Multiple of elements at which blocks are cut: whole chunks of the smallest size, and whole groups of one exponent."""


class Piece(NamedTuple):
    """Elements of a block on one server: the server, the piece's block number there, first element, and number."""

    server: int
    block: int
    first: int
    elements: int


@dataclass(frozen=True)
class Division:
    """``pieces`` of each block, in the order of their elements, and ``parts``: each server's own manifest."""

    pieces: tuple[tuple[Piece, ...], ...]
    parts: tuple[Manifest, ...]

    def servers_of(self, block: int) -> list[int]:
        """Return the numbers of the servers that have a part of a block."""
        return [piece.server for piece in self.pieces[block]]


@dataclass(frozen=True)
class Standing:
    """A server's store before it is opened: ``uuid``, and committed ``steps`` it can be opened at, newest first.

    Without steps it has no first values, and perhaps is not there yet. ``commit_points``: the steps that its server
    puts on the disk, in words that are equal where the steps are. ``under_way``: a run of several servers has it, all
    of whose workers have come.
    """

    uuid: str
    steps: tuple[int, ...]
    commit_points: str = ""
    under_way: bool = False


@dataclass(frozen=True)
class Share:
    """Share of one server in a job.

    Attributes:
        servers: number of servers with a share.
        uuid: id that the store gets, or must have; empty: any.
        step: step that all servers have, and at which the store is opened; None: its last step, or no first values.
    """

    servers: int = 1
    uuid: str = ""
    step: int | None = None


def divide(manifest: Manifest, servers: int) -> Division:
    """Cut each block into one piece for each server, so that all links and disks carry the same.

    Cuts are at multiples of `PIECE_STEP` elements. Of a block with fewer pieces than servers, the next servers in turn
    have one.

    Raises:
        ConfigError: a server would have nothing.
    """
    parts: list[list[BlockManifest]] = [[] for _ in range(servers)]
    pieces = []
    turn = 0
    for block in manifest.blocks:
        length = -(-block.elements // (servers * PIECE_STEP)) * PIECE_STEP
        found = []
        for first in range(0, block.elements, length):
            elements = min(length, block.elements - first)
            found.append(Piece(turn, len(parts[turn]), first, elements))
            parts[turn].append(replace(block, first=first, elements=elements))
            turn = (turn + 1) % servers
        pieces.append(tuple(found))
    if not all(parts):
        raise ConfigError(f"servers: expected at most {sum(map(bool, parts))} for so small a model, found {servers}")
    return Division(tuple(pieces), tuple(replace(manifest, blocks=tuple(part)) for part in parts))


def cut_segments(segments: Sequence[tuple[int, int]], piece: Piece) -> list[tuple[int, int]]:
    """The part of a block's (end element, group) segments that lies in a piece, counted from its first element."""
    end = piece.first + piece.elements
    starts = [0, *(stop for stop, _ in segments)]
    return [
        (min(stop, end) - piece.first, group)
        for start, (stop, group) in zip(starts, segments, strict=False)
        if stop > piece.first and start < end
    ]


def name_parts(first: str, servers: int) -> list[str]:
    """Return the uuids of a job's stores: the first one's, and those of the others, which follow from it."""
    return [first, *(uuid.uuid5(uuid.UUID(first), str(number)).hex for number in range(1, servers))]


def require_one_job(standings: Sequence[Standing], urls: Sequence[str]) -> None:
    """Refuse servers whose stores are not the parts of one job, in their order.

    Raises:
        ManifestMismatchError: stores of different jobs, in another order, or of a job with fewer servers.
    """
    names = name_parts(standings[0].uuid, len(standings))
    under_way = any(standing.under_way for standing in standings)
    for number, (standing, name) in enumerate(zip(standings, names, strict=True)):
        if (standing.steps or under_way) and standing.uuid != name:
            raise ManifestMismatchError(
                f"the store of {urls[number]} is not part {number + 1} of {len(urls)} of the job that the store of "
                f"{urls[0]} belongs to, if that is its first part; name the same servers in the same order as when the "
                "stores were made"
            )


def share_out(standings: Sequence[Standing], urls: Sequence[str]) -> list[Share]:
    """Return each server's share, if the stores belong together.

    The first server's store names the job; the uuids of the others follow from it and from their places in the order.
    Servers may be apart, when one was lost between the commits of the others and its own: all open at the last step
    that every one of them has.

    Raises:
        ManifestMismatchError: stores of different jobs, in another order, or at steps that do not fit together.
        ConfigError: their servers would commit different steps.
    """
    for standing, url in zip(standings, urls, strict=True):
        if standing.commit_points != standings[0].commit_points:
            raise ConfigError(
                f"durable: expected {standings[0].commit_points} at {url} as at {urls[0]}, found "
                f"{standing.commit_points}; give all servers of a job the same --durable and --snapshot-every"
            )
    require_one_job(standings, urls)
    names = name_parts(standings[0].uuid, len(standings))
    started = [standing.steps for standing in standings if standing.steps]
    common = set(started[0]).intersection(*started) if started else {0}
    step = max(common) if common else min(steps[0] for steps in started)
    for standing, url in zip(standings, urls, strict=True):
        if step not in standing.steps and (standing.steps or step > 0):
            found = " and ".join(map(str, standing.steps)) or "no values"
            raise ManifestMismatchError(
                f"the servers do not stand together: expected step {step} at {url}, found {found}; name the servers "
                "whose stores belong together, or restore a snapshot of the same step on all of them "
                f"(luwu snapshot restore STORE --step {step})"
            )
    return [
        Share(len(standings), name, step if standing.steps else None)
        for standing, name in zip(standings, names, strict=True)
    ]
