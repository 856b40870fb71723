"""Power cuts and failing calls in every operation of a store; benchmarks/power_cuts.py and fault_points.py try all."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from harness.disk.cutting import cut
from harness.disk.faults import LEAK_BYTES, fail_at, fail_everywhere, fail_syncs_that_are_ignored, held
from harness.disk.operations import OPERATIONS
from harness.disk.processes import in_child, recording_pool, returned
from harness.disk.recorder import LIBRARY, Fault
from harness.disk.removing import removals

pytestmark = [
    pytest.mark.skipif(not LIBRARY.exists(), reason="the native tests are not built (make test builds them)"),
    pytest.mark.host_only,
]

CUT_SHARE = 0.08
FAULT_SHARE = 0.01
NAMES = [operation.name for operation in OPERATIONS]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with recording_pool(1) as processes:
        yield processes


@pytest.mark.parametrize("name", NAMES)
def test_a_power_cut_leaves_what_was_promised(pool: ProcessPoolExecutor, name: str) -> None:
    report = pool.submit(cut, name, by_chance=20, seed=7, share=CUT_SHARE).result()
    assert report.wrong == []
    assert report.states > 0


@pytest.mark.parametrize("name", ["step", "remove a snapshot"])
def test_a_power_cut_shows_that_a_sync_is_missing(pool: ProcessPoolExecutor, name: str) -> None:
    found = pool.submit(removals, name).result()
    caught = {removal.line.rsplit(":", 1)[0] for removal in found if removal.caught}
    assert (
        caught
        == {
            "step": {
                "native/store/chunk_store.cc",
                "native/store/commit_file.cc",
                "native/store/commit_files.cc",
            },
            "remove a snapshot": {"native/store/snapshots.cc"},
        }[name]
    )


@pytest.mark.parametrize("name", [operation.name for operation in OPERATIONS if not operation.fails_itself])
def test_a_call_that_fails_loses_nothing(pool: ProcessPoolExecutor, name: str) -> None:
    report = pool.submit(fail_everywhere, name, seed=7, share=FAULT_SHARE).result()
    assert report.wrong == []
    assert report.missed == []


def test_a_program_that_ignores_failed_syncs_is_found(pool: ProcessPoolExecutor) -> None:
    report = pool.submit(fail_syncs_that_are_ignored, "restore to another run").result()
    assert report.went_on > 0
    assert report.wrong != []


@pytest.mark.parametrize(
    ("name", "key", "fault"),
    [
        # Each lost something once: a step that was answered, a part of a tokenizer, another stripe's snapshot, and the
        # files of a snapshot's model.
        ("clipped step", "write /disk-a/store/commit.luwu @0 #3", Fault.NO_SPACE),
        ("import", "write /disk-a/store/model/.tokenizer.json.partial @0 #1", Fault.CUT),
        ("restore", "open /disk-a/store/snapshots #4", Fault.IO_ERROR),
        ("snapshot with a model's files", "open /disk-a/store/model #1", Fault.IO_ERROR),
        # This one was waited for, a minute long; the next ones ended with an error that has no type.
        ("create", "close /runs/run #3", Fault.IO_ERROR),
        ("export", "stat /exports/one/config.json @0 #1", Fault.IO_ERROR),
        ("export", "close /disk-a/store/model/buffers.safetensors #3", Fault.IO_ERROR),
    ],
)
def test_a_call_that_once_lost_something(pool: ProcessPoolExecutor, name: str, key: str, fault: Fault) -> None:
    report = pool.submit(fail_at, name, [(key, fault)]).result()
    assert report.wrong == []
    assert report.missed == []


def test_strings_that_come_and_go_are_no_leak(pool: ProcessPoolExecutor) -> None:
    assert pool.submit(bytes_of_interned_strings).result() < LEAK_BYTES


def bytes_of_interned_strings() -> int:
    """Return by how much memory grows in a child that interns a million strings, as pathlib does, and keeps none."""

    def grown() -> int:
        before = held().malloc_bytes
        for number in range(1_000_000):
            sys.intern(f"come and gone {number}")
        return held().malloc_bytes - before

    return returned(in_child(grown), "interned strings")


@pytest.mark.timeout(60)  # a pool that waits for what was begun waits for ever
def test_a_pool_that_is_left_by_an_error_ends_what_was_begun() -> None:
    with pytest.raises(KeyboardInterrupt), recording_pool(1) as pool:
        pool.submit(signal.pause)
        raise KeyboardInterrupt
