"""A model's blocks over several servers: which server has which, the same for every worker that asks."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from luwu.errors import ConfigError, ManifestMismatchError
from luwu.store.manifest import Manifest


class BlockHome(NamedTuple):
    """Where a block is: the server's number, and the block's own number there."""

    server: int
    block: int


@dataclass(frozen=True)
class Striping:
    """``homes`` of all blocks, and ``parts``: each server's own manifest."""

    homes: tuple[BlockHome, ...]
    parts: tuple[Manifest, ...]


@dataclass(frozen=True)
class Standing:
    """A server's store before it is opened: ``uuid``, and committed ``steps`` it can be opened at, newest first.

    Without steps it has no first values, and perhaps is not there yet.
    """

    uuid: str
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Share:
    """One server's share of a job.

    Attributes:
        servers: how many have one.
        uuid: of the store, which is made with it, or must have it; empty: any.
        step: that all servers have, and that the store is opened at; None: its last, or there are no first values.
    """

    servers: int = 1
    uuid: str = ""
    step: int | None = None


def stripe(manifest: Manifest, servers: int) -> Striping:
    """Give each block, in their order, to the server that moves the fewest bytes in a step so far.

    Raises:
        ConfigError: fewer blocks than servers.
    """
    if len(manifest.blocks) < servers:
        raise ConfigError(f"servers: expected at most one for each of {len(manifest.blocks)} blocks, found {servers}")
    moved = [0] * servers
    counts = [0] * servers
    homes = []
    for block in manifest.blocks:
        server = moved.index(min(moved))
        homes.append(BlockHome(server, counts[server]))
        counts[server] += 1
        moved[server] += block.elements * (2 if block.trainable else 1)  # pulled, and pushed
    parts = tuple(
        replace(manifest, blocks=tuple(b for b, home in zip(manifest.blocks, homes, strict=True) if home.server == i))
        for i in range(servers)
    )
    return Striping(tuple(homes), parts)


def share_out(standings: Sequence[Standing], urls: Sequence[str]) -> list[Share]:
    """Each server's share, where the stores belong together.

    The first server's store names the job; the uuids of the others follow from it and from their places in the order.
    Servers may be one step apart, when one was lost between the commits of the others and its own.

    Raises:
        ManifestMismatchError: stores of different jobs, in another order, or at steps that do not fit together.
    """
    names = [standings[0].uuid]
    names += [uuid.uuid5(uuid.UUID(names[0]), str(number)).hex for number in range(1, len(standings))]
    for number, (standing, name) in enumerate(zip(standings, names, strict=True)):
        if standing.steps and standing.uuid != name:
            raise ManifestMismatchError(
                f"the store of {urls[number]} is not part {number + 1} of {len(urls)} of the job whose first part "
                f"{urls[0]} has; name the same servers in the same order as when the stores were made"
            )
    started = [standing.steps for standing in standings if standing.steps]
    step = min((steps[0] for steps in started), default=0)
    for standing, url in zip(standings, urls, strict=True):
        if step not in standing.steps and (standing.steps or step > 0):
            found = " and ".join(map(str, standing.steps)) or "no values"
            raise ManifestMismatchError(
                f"the servers do not stand together: expected step {step} at {url}, found {found}; "
                "name the servers whose stores belong together"
            )
    return [
        Share(len(standings), name, step if standing.steps else None)
        for standing, name in zip(standings, names, strict=True)
    ]
