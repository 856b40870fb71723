"""Damage that a disk does to the files of a store: flipped bits, and sectors as they were before."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.disk.rotten_stores import Contents, Subject

PAGE = 4096
PAGE_0_BYTES, HEADER_BYTES, RECORD_BYTES = 72, 88, 100
"""Bytes of a page that say something: page 0's, a chunk header's, and a commit record's without its counts."""


@dataclass(frozen=True)
class Damage:
    """Bytes that a disk returns in place of others.

    Attributes:
        kind: what is counted together.
        patches: a file's path in the subject's folder, an offset, and the bytes that are there now.
        deep: look in all ways; else only at the records and chunks.
    """

    kind: str
    patches: tuple[tuple[str, int, bytes], ...]
    deep: bool = True


@dataclass(frozen=True)
class Share:
    """Fraction of the damages that are tried, from 0 to 1, for each kind; a seed draws which.

    Attributes:
        bits: of the bits that say something.
        slots: of the other bits of the commit records' slots.
        padding: of those beside other records and headers.
        deep: of the bits of one copy of a record that are looked at in all ways, and of headers'.
        sectors: of stale sectors.
        seed: draws them.
    """

    bits: float
    slots: float
    padding: float
    deep: float
    sectors: float
    seed: int = 0


@dataclass(frozen=True)
class _Place:
    """Bytes of which each bit is flipped, in all of these files and copies at once.

    Attributes:
        kind: what they are.
        paths, copies: the files, and how far behind OFFSET the copies lie in each.
        offset, size: the place.
        used: bytes that say something; padding follows.
        deep, padding: shares of the bits that are looked at in all ways, and of the padding that is tried.
    """

    kind: str
    paths: list[str]
    offset: int
    size: int
    used: int
    deep: float = 1
    padding: float = 0
    copies: tuple[int, ...] = (0,)


def damages(subject: Subject, share: Share) -> Iterator[Damage]:
    """Return damages of a subject, the same at each call: flipped bits, then stale sectors."""
    chance = random.Random(share.seed)
    for path in _files(subject):
        for place in _places(subject, path, share):
            yield from _flips(subject, place, share, chance)
    for path in _files(subject):
        yield from _stale_sectors(subject, path, share, chance)


def _files(subject: Subject) -> list[str]:
    """Files of the store that rot may reach, each under its first name."""
    if subject.name == "unfinished import":
        return [path for path in subject.now if path.endswith("import.json")]
    return [path for path in subject.now if "/store/" in path and subject.names[path][0] == path]


def _places(subject: Subject, path: str, share: Share) -> Iterator[_Place]:
    content, name = subject.now[path], path.rsplit("/", 1)[-1]
    if "/model/" in path:
        yield _Place("model's files", [path], 0, len(content), len(content), share.deep)
    elif name.endswith(".json"):
        yield _Place(name, [path], 0, len(content), len(content))
    elif name in ("commit.luwu", "snapshot.luwu"):
        yield from _slots(subject, path, name, share)
    else:
        yield _Place("page 0", [path], 0, PAGE, PAGE_0_BYTES, share.deep, share.padding)
        for header in re.finditer(b"LUWUCHNK", content):
            yield _Place("chunk header", [path], header.start(), PAGE, HEADER_BYTES, share.deep, share.padding)


def _slots(subject: Subject, path: str, name: str, share: Share) -> Iterator[_Place]:
    """Return each copy of each slot alone, and all copies in all folders together."""
    content = subject.now[path]
    copies = [found.start() for found in re.finditer(b"LUWUCMIT", content)]
    used = RECORD_BYTES + 8 * int.from_bytes(content[12:16], "little")
    padding = share.slots if name == "commit.luwu" else share.padding
    for offset in copies:
        yield _Place(f"one copy in {name}", [path], offset, PAGE, used, share.deep, padding)
    first, *others = (str(folder.relative_to(subject.top)) for folder in subject.store.folders)
    if not path.startswith(first):
        return
    everywhere = [path, *(path.replace(first, other, 1) for other in others)]
    for one, two in zip(copies[:2], copies[2:], strict=True):
        yield _Place(f"all copies in {name}", everywhere, one, PAGE, used, 1, padding, (0, two - one))


def _flips(subject: Subject, place: _Place, share: Share, chance: random.Random) -> Iterator[Damage]:
    for number in range(place.size * 8):
        at, used = place.offset + number // 8, number < place.used * 8
        if chance.random() >= (share.bits if used else place.padding):
            continue
        patches = tuple(
            (path, at + copy, bytes([subject.now[path][at + copy] ^ (1 << number % 8)]))
            for path in place.paths
            for copy in place.copies
        )
        deep = used and chance.random() < place.deep
        yield Damage(f"bit of {place.kind}" + ("" if used else ", padding"), patches, deep)


def _stale_sectors(subject: Subject, path: str, share: Share, chance: random.Random) -> Iterator[Damage]:
    """Put what a sector had at an earlier moment in its place, or zeros, as before its first write."""
    now = subject.now[path]
    before: list[Contents] = [*subject.earlier, {path: bytes(len(now))}]
    for size in (512, PAGE):
        for offset in range(0, len(now), size):
            part = now[offset : offset + size]
            found = {then[path][offset : offset + size] for then in before if path in then}
            for old in sorted({old.ljust(len(part), b"\0")[: len(part)] for old in found} - {part}):
                if chance.random() < share.sectors:
                    yield Damage(f"stale sector of {_structure(path)}", ((path, offset, old),))


def _structure(path: str) -> str:
    name = path.rsplit("/", 1)[-1]
    return re.sub(r"-\d", "", name) + (" of a snapshot" if "/snapshots/" in path else "")
