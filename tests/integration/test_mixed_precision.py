"""float16 with a scaled loss, and blocks of several dtypes, over real servers and stores."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.integration.network import KEY
from tests.integration.test_network_servers import servers, url_of
from tests.integration.test_sessions import equal
from tests.integration.udp import QUICK, in_threads, local_server, udp_tree
from torch import Tensor, nn

import luwu
from harness.small_models import Block, Tiny, loss_of
from harness.stored import contents, read_block
from luwu.errors import ManifestMismatchError, StepOrderError
from luwu.session.remote import connect
from luwu.session.session import Session
from luwu.store.exporting import export_safetensors
from luwu.store.opening import open_reader
from luwu.store.upkeep import info
from luwu.store.verifying import verify

WORKERS = 2
ATTEMPTS = 10
SCALING = luwu.LossScaling(growth_interval=3)
MIXED = {"h.1": torch.float32, "head": torch.bfloat16}

Attempt = tuple[float, float, bool]
"""Loss, scale, whether it was committed."""


def tiny(depth: int = 3) -> Tiny:
    torch.manual_seed(0)
    return Tiny(depth)


def spoiled_loss(model: nn.Module, attempt: int, rank: int) -> Tensor:
    """Return a loss that overflows one worker's gradients in two attempts, and no other's."""
    loss = loss_of(model, 10 * attempt + rank)
    return loss * 2.0**15 if (attempt, rank) in ((2, 1), (7, 0)) else loss


def trained(
    session: Session, model: Tiny, attempts: int = ATTEMPTS, limit: float | None = None, **options
) -> tuple[list[Attempt], dict[str, Tensor]]:
    """Go on to ``attempts`` attempts; return them and the values that came of them."""
    options = {"dtype": torch.float16, "loss_scaling": SCALING} | options
    luwu.parallelize(model, session, [Block], **options)
    optimizer = luwu.AdamW(model, lr=1e-2, max_grad_norm=limit)
    found = []
    while session.attempts < attempts:
        scale = optimizer.loss_scale
        loss = spoiled_loss(model, session.attempts, session.rank)
        optimizer.scale(loss).backward()
        optimizer.step()
        found.append((loss.item(), scale, optimizer.last_step_committed))
    return found, luwu.full_state_dict(model)


def train_over(way: str, folder: Path, **options) -> list[tuple[list[Attempt], dict[str, Tensor]]]:
    """Return the findings of each of two workers, through one server or two."""
    models = [tiny() for _ in range(WORKERS)]
    with ExitStack() as stack:
        if way == "local":
            joined = stack.enter_context(local_server(folder, WORKERS))
        else:
            if way == "two servers":
                url = url_of(*stack.enter_context(servers(folder, 2)))
            else:
                settings = {"transport": "tcp"} if way == "tcp" else {}
                url = stack.enter_context(udp_tree(folder / "store", WORKERS, (), **settings))
            joined = lambda rank: connect(url, rank=rank, workers=WORKERS, key=KEY, timeouts=QUICK)  # noqa: E731

        def one(rank: int) -> tuple[list[Attempt], dict[str, Tensor]]:
            with joined(rank) as session:
                return trained(session, models[rank], **options)

        return in_threads(WORKERS, one)


@pytest.mark.parametrize("limit", [None, 0.5], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("dtypes", [{}, MIXED], ids=["float16", "mixed"])
def test_one_workers_overflow_is_everybodys_skipped_step_on_every_way(tmp_path: Path, dtypes: dict, limit) -> None:
    options = {"block_dtypes": dtypes, "limit": limit}
    found = {way: train_over(way, tmp_path / way, **options) for way in ("local", "tcp", "two servers", "udp")}
    (reference, values), (other, _) = found["local"]
    assert [attempt for attempt, (_, _, taken) in enumerate(reference) if not taken] == [2, 7]
    assert [scale / 2**16 for _, scale, _ in reference] == [1, 1, 1, 0.5, 0.5, 0.5, 1, 1, 0.5, 0.5]
    assert [step[1:] for step in other] == [step[1:] for step in reference]
    for way in ("tcp", "two servers"):
        assert [attempts for attempts, _ in found[way]] == [reference, other]
        assert all(torch.equal(each[name], value) for _, each in found[way] for name, value in values.items())
    for (attempts, _), expected in zip(found["udp"], (reference, other), strict=True):  # sums in fixed point
        assert [step[1:] for step in attempts] == [step[1:] for step in expected]
        assert [step[0] for step in attempts] == pytest.approx([step[0] for step in expected], rel=1e-3)


def die_after(run: Path, attempts: int) -> None:
    """Train so far in a process that embeds its server, and die."""
    with luwu.open(run, memory="1MiB", rank=0, workers=1) as session:
        trained(session, tiny(), attempts, block_dtypes=MIXED)
        session.wait_durable()
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_that_is_killed_goes_on_with_its_scale_and_the_same_bits(tmp_path: Path) -> None:
    with luwu.open(tmp_path / "once", memory="1MiB", rank=0, workers=1) as session:
        undisturbed, _ = trained(session, tiny(), block_dtypes=MIXED)
    assert not undisturbed[7][2]
    for attempts in (2, 8):  # the second time right after a step that was rolled back
        process = multiprocessing.get_context("spawn").Process(target=die_after, args=(tmp_path / "often", attempts))
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
    with luwu.open(tmp_path / "often", memory="1MiB", rank=0, workers=1) as session:
        rest, _ = trained(session, tiny(), block_dtypes=MIXED)
    assert rest == undisturbed[7:]  # the attempt that had overflowed does so again
    assert equal(contents(tmp_path / "once/store"), contents(tmp_path / "often/store"))
    assert info([tmp_path / "often/store"]).loss_scale == undisturbed[-1][1]


def test_a_store_of_several_dtypes_keeps_masters_and_copies_of_each(tmp_path: Path) -> None:
    for optimizer in (luwu.AdamW, luwu.AdamW8bit):
        run = tmp_path / optimizer.kind
        with luwu.open(run, memory="1MiB") as session:
            model = luwu.parallelize(
                tiny(), session, [Block], optimizer=optimizer, dtype=torch.float16, block_dtypes=MIXED
            )
            optim = optimizer(model, lr=1e-2)
            for step in range(3):
                optim.scale(loss_of(model, step)).backward()
                optim.step()
                assert optim.last_step_committed
            with pytest.raises(StepOrderError, match=r"optim\.scale"):
                loss_of(model, 4).backward()
            values = luwu.full_state_dict(model)
        reader, manifest = open_reader([run / "store"])
        dtypes = {block.name: manifest.dtype_of(block) for block in manifest.blocks}
        assert set(dtypes.items()) >= {
            ("h.0", "float16"),
            ("h.1", "float32"),
            ("head", "bfloat16"),
            ("<root>", "float16"),
        }
        for number, block in enumerate(manifest.blocks):
            raw, states = read_block(reader, number)
            dtype = getattr(torch, dtypes[block.name])
            assert len(states) == (2 if dtype is torch.float32 else 3)
            if dtype is torch.float16 or (dtype is torch.bfloat16 and optimizer is luwu.AdamW):
                master = torch.from_numpy(states[0])
                assert torch.equal(torch.from_numpy(raw).view(dtype), master.to(dtype))
        export_safetensors([run / "store"], run / "low")
        export_safetensors([run / "store"], run / "exact", dtype="float32")
        low, exact = (load_file(run / name / "model.safetensors") for name in ("low", "exact"))
        assert all(low[name].dtype is values[name].dtype and torch.equal(low[name], values[name]) for name in low)
        assert low["h.1.up.weight"].dtype is torch.float32 and low["head.weight"].dtype is torch.bfloat16
        assert any(not torch.equal(exact[name], low[name].float()) for name in exact)
        assert verify([run / "store"]).damaged == 0
        described = info([run / "store"])
        assert described.dtype == "float16 (3 blocks), float32 (1 block), bfloat16 (1 block)"
        assert described.loss_scale == 2.0**16


def test_other_dtypes_than_the_stores_are_refused(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory="1MiB") as session:
        luwu.parallelize(tiny(), session, [Block], dtype=torch.float16, block_dtypes={"h.1": torch.float32})
    with luwu.open(tmp_path, memory="1MiB") as session:
        with pytest.raises(ManifestMismatchError, match=r"dtype of block h\.1: expected bfloat16, found float32"):
            luwu.parallelize(tiny(), session, [Block], dtype=torch.float16, block_dtypes={"h.1": torch.bfloat16})
