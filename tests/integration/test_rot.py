"""Flipped bits, stale sectors and lost writes are noticed by name, or harmless. benchmarks/rot.py tries all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.disk import recorder, rotten_stores
from harness.disk.damages import Share, damages
from harness.disk.lost_writes import RETRIED, recorded, try_lost_writes
from harness.disk.processes import MEMORY, recording_pool
from harness.disk.rot import Tally, Verdict, try_all
from harness.disk.rot_controls import controls
from harness.disk.rotten_stores import Subject

SHARE = Share(bits=1 / 512, slots=1 / 65536, padding=1 / 65536, deep=1, sectors=1 / 48)
ALWAYS_NOTICED = (
    "one copy in commit.luwu", "all copies in commit.luwu", "page 0", "manifest.json", "run.json", "origin.json",
    "import.json", "model's files",
)  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as made:
        yield Path(made)


@pytest.mark.parametrize(
    "make", [rotten_stores.trained, rotten_stores.eight_bit, rotten_stores.imported, rotten_stores.unfinished]
)
def test_rot_is_noticed_by_name_or_harmless(make: Callable[[Path], Subject], folder: Path) -> None:
    subject = make(folder)
    if make is rotten_stores.trained:
        judged = controls(subject)
        assert all(judged.values()), judged  # else what follows says nothing
    tally = Tally()
    try_all(subject, damages(subject, SHARE), tally)
    assert not tally.bad
    assert tally.total(Verdict.NOTICED) > 0
    for kind in ALWAYS_NOTICED:
        assert tally.counts.get(f"bit of {kind}", {Verdict.NOTICED: 1}).keys() == {Verdict.NOTICED}, kind


@pytest.fixture(scope="module")
def recording() -> Iterator[ProcessPoolExecutor]:
    if not recorder.LIBRARY.exists():
        pytest.skip("the native tests are not built: tools/native_tests.sh")
    with recording_pool(1) as pool:
        yield pool


@pytest.mark.parametrize("place", range(len(RETRIED)))
def test_a_lost_write_of_a_step_made_again_is_noticed_or_harmless(
    place: int, folder: Path, recording: ProcessPoolExecutor
) -> None:
    name, history, tally = RETRIED[place].name, recording.submit(recorded, place).result(), Tally()
    try_lost_writes(name, history, folder, tally)
    assert not tally.bad
    noticed, harmless = tally.total(Verdict.NOTICED), tally.total(Verdict.HARMLESS)
    assert noticed >= 2 and harmless > 0  # both chunks of the step, and each copy of its record
