"""The operations of a store that a power cut or a failed call may interrupt.

Each begins with a folder that was prepared, and marks what the store holds: "is LABEL" once that is durable, "may
LABEL" before it begins to change to that. LABEL begins with the committed step. `KILLED_MARK` tells nothing of a store.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar
from unittest import mock

import torch
from torch import Tensor, nn

import luwu
from harness.disk.observing import MEMORY_BYTES, Found, observe
from harness.disk.recorder import Fault, fail, mark
from harness.small_models import Tiny, loss_of
from luwu import _native
from luwu.core.manifest import BlockManifest, Manifest, ParameterManifest
from luwu.core.native import block_specs
from luwu.errors import StoreSpaceError
from luwu.session.local import LocalSession
from luwu.store import importing, snapshots, upkeep
from luwu.store.exporting import export_safetensors
from luwu.store.folders import ORIGIN_NAME, UNFINISHED_IMPORT_NAME, read_identity
from luwu.store.model_files import keep_model_files
from luwu.store.run_record import Claim, Counts, RunRecord, claim_store
from luwu.worker.layout import describe
from luwu.worker.parallelize import parallelize

KILLED_MARK = "a child was killed"

Prepare = Run = Callable[[Path], None]
Observe = Callable[[Path, Manifest], Found]


def small_model() -> nn.Module:
    """Return a model with trained blocks and a frozen one, which has chunks in both folders."""
    model = Tiny(depth=2)
    model.embed.requires_grad_(False)
    model.h[0].requires_grad_(False)
    return model


def nothing(top: Path) -> None:
    """Prepare an empty folder."""


def stores_of(top: Path) -> list[Path]:
    """Return the folders of the store of most operations: two, in folders of their own."""
    return [top / "disk-a" / "store", top / "disk-b" / "store"]


def observed(top: Path, manifest: Manifest) -> Found:
    """Open and read the store of a trained run."""
    return observe(stores_of(top), manifest)


@contextmanager
def training(
    top: Path, durable: str = "step", **settings: float
) -> Iterator[tuple[LocalSession, nn.Module, torch.optim.Optimizer]]:
    """Open the run in a folder, made if it is not there, with a small model."""
    kind = luwu.AdamW8bit if settings.pop("eight_bits", False) else luwu.AdamW
    torch.manual_seed(0)
    with luwu.open(
        top / "runs" / "run", stores=stores_of(top), memory=MEMORY_BYTES, durable=durable, disk_full_wait_seconds=0
    ) as session:
        model = parallelize(small_model(), session, optimizer=kind)
        yield session, model, kind(model, lr=1e-2, **settings)


def written_step(session: LocalSession) -> int:
    """The last step that is on the disk: a step may be answered before it is."""
    assert session.server is not None
    return session.step - int(session.server.stats().get("unwritten", 0))


def train(top: Path, until: int, label: str = "{}", *, voided: int | None = None, **settings: float) -> None:
    """Train to a step; each is made with data of its own. `voided`: the first attempt at this one is rolled back."""
    with training(top, **settings) as (session, model, optimizer):
        mark("is " + label.format(session.step))
        while session.step < until:
            mark("may " + label.format(session.step + 1))
            loss = loss_of(model, session.step)
            bad, voided = session.step + 1 == voided, None if session.step + 1 == voided else voided
            (loss * float("nan") if bad else loss).backward()
            optimizer.step(wait="answer" if "max_grad_norm" in settings else "durable")
            mark("is " + label.format(written_step(session)))
    mark("is " + label.format(until))


def two_steps(top: Path) -> None:
    """Train two steps without a word between them: the first one's record must be durable before the second writes."""
    with training(top) as (session, model, optimizer):
        mark("is 2")
        mark("may 3")
        mark("may 4")
        for step in (2, 3):
            loss_of(model, step).backward()
            optimizer.step()
        session.wait_durable()
        mark(f"is {session.step}")


def commit_points(top: Path) -> None:
    """Train four steps in memory, of which every second is written while the next one is made."""
    with training(top, durable="2 steps") as (session, model, optimizer):
        mark("is 2")
        mark("may 4")
        mark("may 6")
        for step in range(2, 6):
            loss_of(model, step).backward()
            optimizer.step()
        session.wait_durable()
        mark(f"is {session.step}")


@dataclass(frozen=True)
class Operation:
    """An operation: `prepare` makes the files before it, `run` is recorded, `observe` opens what was left.

    ``settings`` are those of `model_manifest`; ``fails_itself``: a call fails in it, so no other one can.
    """

    name: str
    prepare: Prepare
    run: Run
    observe: Observe = observed
    settings: dict[str, str] = field(default_factory=dict)
    fails_itself: bool = False


# ---- a store is made -------------------------------------------------------------------------------------------------


def create(top: Path) -> None:
    """Make a run with first values; before, what is missing can be made by whoever opens the store."""
    mark("is -1")
    mark("may 0")
    train(top, 0)


def create_again(top: Path) -> None:
    """Begin to make a store as `create` does, in a process that is killed, and make it."""
    killed(top, "rename /disk-a/store/.manifest.json.partial #1", partial(train, top, 0))
    create(top)


def create_on_a_full_disk(top: Path) -> None:
    """Begin to make a store on a disk that is full, and make it when there is room."""
    mark("is -1")
    mark("may 0")
    fail("fallocate /disk-b/store/version-1.luwu #1", Fault.NO_SPACE)
    try:
        train(top, 0)
    except StoreSpaceError:
        train(top, 0)
    else:
        raise AssertionError("the disk was not full")


class Numbers:
    """A checkpoint of a manifest's model: each parameter counts up from a number of its own. Step 7 was its last."""

    origin: ClassVar = {"files": [["numbers", 1, 2]]}
    step = 7

    def updates(self, block: BlockManifest) -> int:
        """Return the number of updates that the block has had."""
        return 7 if block.trainable else 0

    def read(self, parameter: ParameterManifest, first: int, count: int) -> Tensor:
        """Return elements of a parameter."""
        return torch.arange(first, first + count, dtype=torch.float32) + parameter.numel

    def read_moments(self, parameter: ParameterManifest, first: int, count: int) -> list[Tensor]:
        """Return elements of the parameter's two moments."""
        return [self.read(parameter, first, count) / 2, self.read(parameter, first, count) / 4]


def checkpoint(top: Path) -> None:
    """Prepare a model's folder, with what an import keeps of it."""
    (top / "model").mkdir()
    (top / "model" / "config.json").write_text('{"hidden": 12}')
    (top / "model" / "tokenizer.json").write_text("[" + "0, " * 1000 + "0]")


NUMBERS = Numbers()


class HalfReadable(Numbers):
    """The same checkpoint, of which the last block cannot be read."""

    def updates(self, block: BlockManifest) -> int:
        """Return the number of updates that the block has had; raises OSError for the last one."""
        if block == model_manifest().blocks[-1]:
            raise OSError("the last block cannot be read")
        return super().updates(block)


class OtherNumbers(Numbers):
    """Another checkpoint of the same model."""

    origin: ClassVar = {"files": [["other numbers", 1, 2]]}

    def read(self, parameter: ParameterManifest, first: int, count: int) -> Tensor:
        """Return elements of a parameter."""
        return -super().read(parameter, first, count)


def import_numbers(top: Path, manifest: Manifest, source: importing.Source = NUMBERS) -> None:
    """Import a checkpoint, with an entry of the journal after every chunk."""
    keep = partial(keep_model_files, top / "model", stores_of(top)[0], {"positions": torch.arange(200)})
    with mock.patch.object(importing, "SYNC_BYTES", 1):
        importing.import_values(source, manifest, stores_of(top), keep=keep)


def with_half_an_import(top: Path) -> None:
    """Import a part of a checkpoint."""
    checkpoint(top)
    with suppress(OSError):
        import_numbers(top, model_manifest(), HalfReadable())


def with_a_copy_of_half_an_import(top: Path) -> None:
    """Import a part of a checkpoint, and make a copy with hard links."""
    with_half_an_import(top)
    for store, copy in zip(stores_of(top), copies_of(top), strict=True):
        shutil.copytree(store, copy, copy_function=os.link)


def copies_of(top: Path) -> list[Path]:
    """Return the folders of the copy of a store, which the operation must leave alone."""
    return [top / "copy-a", top / "copy-b"]


def import_it(top: Path, source: importing.Source = NUMBERS) -> None:
    """Import a checkpoint."""
    mark("is -1")
    mark("may 7")
    import_numbers(top, model_manifest(), source)
    mark("is 7")


def imported(top: Path, manifest: Manifest, source: importing.Source = NUMBERS) -> Found:
    """Read the store, as nobody gives a finished import again; one that is not finished is, and counts as none."""
    first = stores_of(top)[0]
    if (first / ORIGIN_NAME).exists() and not (first / UNFINISHED_IMPORT_NAME).exists():
        return observe(stores_of(top), manifest)
    import_numbers(top, manifest, source)
    return Found(-1, f"an import that ends as {observe(stores_of(top), manifest)}")


def imported_beside_a_copy(top: Path, manifest: Manifest) -> Found:
    """Read the store, and the copy's files, which stay as they are."""
    found = imported(top, manifest)
    return replace(found, digest=" ".join([found.digest, *map(digest_of, copies_of(top))]))


def model_manifest(optimizer: str = luwu.AdamW.kind) -> Manifest:
    """Return the manifest of the model that is trained."""
    return describe(small_model(), None, torch.float32, optimizer, {})


# ---- a store is trained ----------------------------------------------------------------------------------------------


def killed(top: Path, key: str, run: Callable[[], None]) -> None:
    """Run something in a child that is killed at a call; not all that it wrote is durable."""
    child = os.fork()
    if child == 0:
        fail(key, Fault.KILL)
        run()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"{key}: no such call came"
    mark(KILLED_MARK)


def reopen(top: Path, key: str) -> None:
    """Train in a child that is killed at a call, and go on in this process."""
    killed(top, key, partial(train, top, 6))
    train(top, 5)


# ---- snapshots and upkeep --------------------------------------------------------------------------------------------


def with_snapshot(top: Path, step: int = 2, until: int = 4) -> None:
    """Train to a step, take a snapshot, and train on."""
    train(top, step)
    snapshots.take(stores_of(top))
    train(top, until)


def take_snapshot(top: Path) -> None:
    """Take a snapshot of a store that no server has open, and train on."""
    mark("is 4")
    mark("may 4 and a snapshot of it")
    snapshots.take(stores_of(top))
    mark("is 4 and a snapshot of it")
    train(top, 6, "{} and the snapshot of 4")


def snapshot_in_training(top: Path) -> None:
    """Take snapshots between steps, as a server does."""
    mark("is 4")
    with training(top) as (session, model, optimizer):
        for step in (4, 5):
            mark(f"may {step} and another snapshot")
            session.snapshot()
            mark(f"is {step} and another snapshot")
            mark(f"may {step + 1} with this snapshot")
            loss_of(model, step).backward()
            optimizer.step(wait="durable")
            mark(f"is {step + 1} with this snapshot")


def restore(top: Path) -> None:
    """Go back to the snapshot of step 2, and train on."""
    mark("is 4 with its snapshot of 2")
    mark("may 2 with its snapshot of 2")
    snapshots.restore(stores_of(top), 2)
    mark("is 2 with its snapshot of 2")
    train(top, 3, "{} after going back")


def remove_snapshot(top: Path) -> None:
    """Remove the snapshot of step 2."""
    mark("is 4 with its snapshot of 2")
    mark("may 4 alone")
    snapshots.remove(stores_of(top), 2)
    mark("is 4 alone")


def compact(top: Path) -> None:
    """Compact the store, and train on."""
    mark("is 3")
    mark("may 3 compact")
    upkeep.compact(stores_of(top))
    mark("is 3 compact")
    train(top, 5)


def set_back(folders: list[Path], step: int) -> None:
    """Open a store at the step before, as one of several servers does when another has not committed."""
    identity = read_identity(folders[0])
    assert identity is not None
    timing = _native.Timing(1, 1, 1, 1, 1)
    manifest = identity.manifest
    _native.TcpServer(
        [str(folder) for folder in folders], identity.uuid, False, block_specs(manifest), manifest.chunk_elements,
        manifest.optimizer, MEMORY_BYTES, 1, 1, "127.0.0.1", 0, 1, timing, None, True, step,
    ).close()  # fmt: skip


def go_back(top: Path) -> None:
    """Set the store back by a step, and train on."""
    mark("is 3")
    mark("may 2")
    set_back(stores_of(top), 2)
    mark("is 2")
    train(top, 4, "{} after going back")


def with_damage(top: Path) -> None:
    """Train to step 3, and damage page 0 of the version that is not committed, in one folder."""
    train(top, 3)
    with (stores_of(top)[0] / "version-0.luwu").open("r+b") as file:
        file.write(b"damaged")


def with_a_lost_file(top: Path) -> None:
    """Train to step 3, and remove the file of the version that is not committed from one folder."""
    train(top, 3)
    (stores_of(top)[1] / "version-0.luwu").unlink()


def run_record(name: str, step: int) -> RunRecord:
    """Return the record of a run that took the store at a step."""
    return RunRecord(name * 32, f"/runs/{name}", "here", {"train.lr": 0.01}, {"sha256": name}, Counts(step, step, 0))


def claimed(top: Path, name: str, step: int) -> None:
    """Give the store to a run, as `luwu train` does."""
    claim = Claim(run_record(name, step), takes_weights=True)
    claim_store(stores_of(top)[0], claim, Counts(step, step, 0), imported=False)


def with_model_files(top: Path) -> None:
    """Import a model and give it to a run."""
    checkpoint(top)
    import_numbers(top, model_manifest())
    claimed(top, "a", Numbers.step)


def snapshot_with_model_files(top: Path) -> None:
    """Take a snapshot of a store that has a model's files."""
    mark("is 7")
    mark("may 7 and a snapshot of it")
    snapshots.take(stores_of(top))
    mark("is 7 and a snapshot of it")


def with_two_runs(top: Path) -> None:
    """Train to step 2 as one run, take a snapshot, and train to step 3 as another."""
    train(top, 1)
    claimed(top, "a", 1)
    with_snapshot(top, 2, 3)
    claimed(top, "b", 3)


def with_a_later_run(top: Path) -> None:
    """Train to step 2 without a run, take a snapshot, and give the store to a run."""
    with_snapshot(top, 2, 3)
    claimed(top, "b", 3)


def restore_to_another_run(top: Path) -> None:
    """Go back to what the store was before its present run; a power cut may leave the store back without its record."""
    mark("is 3")
    mark("may 2 with the record of the later run, which is refused")
    mark("may 2 as it was")
    snapshots.restore(stores_of(top), 2)
    mark("is 2 as it was")


# ---- exports ---------------------------------------------------------------------------------------------------------


def trained_with_model_files(top: Path) -> None:
    """Train a store that has a model's files."""
    with_model_files(top)
    train(top, 8)


def export(top: Path) -> None:
    """Export the store in several files."""
    mark("is -1 exported")
    mark("may 8 exported")
    export_safetensors(stores_of(top), top / "exports" / "one", shard_bytes=2000)
    mark("is 8 exported")


def exported(top: Path, manifest: Manifest) -> Found:
    """Give the same command again; it counts as step 8 where that had nothing left to do."""
    target = top / "exports" / "one"
    before = digest_of(target)
    export_safetensors(stores_of(top), target, shard_bytes=2000)
    after = digest_of(target)
    return Found(8 if before == after else -1, after)


def digest_of(folder: Path) -> str:
    """Return a hash of a folder's files."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob("*")):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


CLIPPED = {"max_grad_norm": 0.05}
EIGHT_BITS = {"eight_bits": True}

OPERATIONS = (
    Operation("create", nothing, create),
    Operation("create after a kill", nothing, create_again),
    Operation("create after a full disk", nothing, create_on_a_full_disk, fails_itself=True),
    Operation("import", checkpoint, import_it, imported),
    Operation(
        "import after a copy of half of it", with_a_copy_of_half_an_import, import_it, imported_beside_a_copy
    ),
    Operation(
        "import after half of another one", with_half_an_import, partial(import_it, source=OtherNumbers()),
        partial(imported, source=OtherNumbers()),
    ),
    Operation("step", partial(train, until=2), partial(train, until=4)),
    Operation("two steps", partial(train, until=2), two_steps),
    Operation("commit points", partial(train, until=2), commit_points),
    Operation("clipped step", partial(train, until=2, **CLIPPED), partial(train, until=5, **CLIPPED)),
    Operation(
        "eight-bit step", partial(train, until=2, **EIGHT_BITS), partial(train, until=4, **EIGHT_BITS),
        settings={"optimizer": luwu.AdamW8bit.kind},
    ),
    Operation("rolled-back step", partial(train, until=2), partial(train, until=4, voided=3)),
    Operation("snapshot", partial(train, until=4), take_snapshot),
    Operation("snapshots in training", partial(train, until=4), snapshot_in_training),
    Operation("remove a snapshot", with_snapshot, remove_snapshot),
    Operation("restore", with_snapshot, restore),
    Operation("snapshot with a model's files", with_model_files, snapshot_with_model_files),
    Operation("restore to another run", with_two_runs, restore_to_another_run),
    Operation("restore to before a run", with_a_later_run, restore_to_another_run),
    Operation("compact", partial(train, until=3), compact),
    Operation("go back", partial(train, until=3), go_back),
    Operation("go back to a damaged file", with_damage, go_back),
    Operation("step after a file was lost", with_a_lost_file, partial(train, until=5)),
    Operation(
        "reopen after a kill within a commit", partial(train, until=3),
        partial(reopen, key="fdatasync /disk-a/store/commit.luwu #5"),
    ),
    Operation(
        "reopen after a kill before a commit", partial(train, until=3),
        partial(reopen, key="fdatasync /disk-b/store/version-1.luwu #1"),
    ),
    Operation("export", trained_with_model_files, export, exported),
)  # fmt: skip
