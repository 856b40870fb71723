"""Damages that nothing can notice, because their checksums are right: who judges rot must complain of each."""

from __future__ import annotations

import re
from unittest import mock

import numpy as np

from harness.disk.damages import Damage
from harness.disk.rot import Verdict, judge
from harness.disk.rotten_stores import Subject
from luwu import _native


def controls(subject: Subject) -> dict[str, bool]:
    """Return for each control whether it was judged as it must be; the subject is the trained one."""
    manifest = next(path for path in subject.now if path.endswith("manifest.json"))
    name = subject.now[manifest].index(b"norm.weight")
    renamed = Damage("renamed parameter", ((manifest, name, b"m"),))
    with mock.patch("luwu.store.folders.require_unchanged"):
        without_checksum = judge(subject, renamed)[0]
    return {
        "a parameter's name, and no checksum is compared": without_checksum == Verdict.SILENT,
        "a parameter's name": judge(subject, renamed)[0] == Verdict.NOTICED,
        "a parameter's value, with its checksum made anew": judge(subject, _forged_value(subject))[0] == Verdict.SILENT,
        "records that say that there are no values": judge(subject, _forged_records(subject))[0] == Verdict.FRESH,
    }


def _crc32c(data: bytes | bytearray) -> bytes:
    return _native.crc32c(np.frombuffer(data, np.uint8)).to_bytes(4, "little")


def _forged_value(subject: Subject) -> Damage:
    """Change the first element of a frozen block: its file has one version alone."""
    path = next(path for path in subject.now if path.endswith("frozen.luwu"))
    content = subject.now[path]
    at = content.index(b"LUWUCHNK")
    nbytes = 4 * int.from_bytes(content[at + 24 : at + 32], "little")
    values = bytearray(content[4096 : 4096 + nbytes])
    values[0] ^= 1
    header = bytearray(content[at : at + 88])
    header[56:60] = _crc32c(values)
    header[84:88] = _crc32c(header[:84])
    return Damage("forged value", ((path, 4096, bytes(values)), (path, at, bytes(header))))


def _forged_records(subject: Subject) -> Damage:
    patches = []
    for path in (path for path in subject.now if path.endswith("commit.luwu")):
        for found in re.finditer(b"LUWUCMIT", subject.now[path]):
            end = found.start() + 96 + 8 * int.from_bytes(subject.now[path][12:16], "little")
            record = bytearray(subject.now[path][found.start() : end])
            record[68:72] = bytes(4)
            patches.append((path, found.start(), bytes(record) + _crc32c(record)))
    return Damage("forged records", tuple(patches))
