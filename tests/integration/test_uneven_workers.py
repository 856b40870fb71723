"""Workers of different speeds share batches by their speeds, and train the model of the whole batches."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from tests.integration.forked import programs
from tests.integration.network import KEY
from tests.integration.small_run import workers_of
from tests.integration.udp import CREDENTIALS, MEMORY

import luwu
from harness.training import finish, metrics, start_small_run, wait_for_steps
from luwu.server.balance import Balance
from luwu.server.network import NetworkServer
from luwu.server.server import LocalServer
from luwu.server.settings import ServerSettings

pytestmark = pytest.mark.timeout(300)

ROWS, STEPS = 16, 10
MODEL = """
def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

def batch_of(step):
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
"""
PROGRAM = f"""
from luwu.session.batch_share import WorkTimer

{MODEL}
url = given["url"]
real_end = WorkTimer.end
def end(self, now, waited):  # a real time, then one of a worker whose speed the test knows
    real_end(self, now, waited)
    assert self.seconds > 0
    self.seconds = share.counts[rank] * (3.0 if rank else 1.0)
WorkTimer.end = end
session = luwu.connect(url, rank=rank, workers=2, key={KEY!r}) if url.startswith("luwu://") else join(url, rank, 2)
with session:
    model = luwu.parallelize(make_model(), session, optimizer=luwu.SGD)
    optimizer = luwu.SGD(model, lr=0.1)
    while session.step < {STEPS}:
        share = session.divide_batch({ROWS})
        rows = batch_of(session.step)[share.rows]
        (model(rows).square().mean() * share.weight).backward()
        optimizer.step()
        print(*share.counts, flush=True)
    values = luwu.full_state_dict(model)
    if rank == 0:
        torch.save(values, given["values"])
"""


def whole_batches(folder: Path) -> dict[str, torch.Tensor]:
    """Return the model that one worker trains."""
    names: dict = {"torch": torch}
    exec(MODEL, names)
    with luwu.open(folder, memory=MEMORY) as session:
        model = luwu.parallelize(names["make_model"](), session, optimizer=luwu.SGD)
        optimizer = luwu.SGD(model, lr=0.1)
        while session.step < STEPS:
            model(names["batch_of"](session.step)).square().mean().backward()
            optimizer.step()
        return luwu.full_state_dict(model)


@pytest.mark.parametrize("transport", ["shared memory", "tcp"])
def test_a_slow_worker_gets_fewer_rows_and_the_model_is_that_of_whole_batches(transport: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        if transport == "tcp":
            settings = ServerSettings(stores=(tmp_path / "store",), workers=2, listen="127.0.0.1:0", memory=MEMORY)
            url = stack.enter_context(NetworkServer(settings, CREDENTIALS)).url
        else:
            url = str(stack.enter_context(LocalServer(tmp_path, None, MEMORY, 2)).socket_path)
        started = stack.enter_context(programs(PROGRAM, tmp_path))
        workers = [started.start(rank, url=url, values=str(tmp_path / "values.pt")) for rank in range(2)]
        lines = [worker.lines() for worker in workers]
        assert [worker.process.returncode for worker in workers] == [0, 0], workers[0].errors.read_text()
    assert lines[0] == lines[1]
    counts = [[int(word) for word in line.split()] for line in lines[0]]
    assert len(counts) == STEPS and all(sum(found) == ROWS for found in counts)
    assert counts[0] == [8, 8] and counts[-1] == [12, 4]
    expected = whole_batches(tmp_path / "alone")
    found = torch.load(tmp_path / "values.pt")
    assert all(torch.allclose(found[name], value, rtol=1e-5, atol=1e-7) for name, value in expected.items())


def test_a_batch_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory=MEMORY) as session:
        with pytest.raises(luwu.errors.ServerError, match="no model yet"):
            session.divide_batch(4)
        luwu.parallelize(torch.nn.Linear(2, 2), session)
        for rows in (0, -1, 1 << 32):
            with pytest.raises(luwu.errors.ConfigError, match=f"rows: expected 1 to 4294967295, found {rows}"):
                session.divide_batch(rows)
        assert session.divide_batch(4) == (slice(0, 4), 1.0, (4,))


@pytest.mark.slow
def test_luwu_train_divides_batches_and_bears_a_lost_worker(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The division changes with every attempt, which no real times would do; losses are those of even divisions."""
    monkeypatch.setattr(Balance, "divide", lambda self, attempt, rows: [rows - 1 - attempt % 3, 1 + attempt % 3])
    monkeypatch.setenv("LUWU_JOB_KEY", KEY)
    settings_file = runs / "without-dropout.toml"  # its random numbers belong to workers
    settings_file.write_text((runs / "settings.toml").read_text().replace("dropout = 0.1", "dropout = 0.0"))
    flags = ("--config", str(settings_file))
    code, _, error = finish(start_small_run(runs, "even", *flags))
    assert code == 0, error
    settings = ServerSettings(
        stores=(runs / "uneven-store",), workers=2, listen="127.0.0.1:0", memory=MEMORY, worker_return_seconds=60
    )
    with NetworkServer(settings, CREDENTIALS) as server:
        process = start_small_run(runs, "uneven", "--server", server.url, "--balance", *flags)
        wait_for_steps(runs, "uneven", 5)
        os.kill(sorted(workers_of(process))[1], signal.SIGKILL)
        code, output, error = finish(process)
    assert code == 0, error
    assert "the workers now take 4, 2 sequences a step, by their speeds" in output
    rows = metrics(runs, "uneven")
    divisions = [[5, 1], [4, 2], [3, 3]]
    assert [row.get("sequences", [3, 3]) for row in rows] == [divisions[row["attempt"] % 3] for row in rows]
    even = metrics(runs, "even")
    assert [(row["step"], row["tokens"]) for row in rows] == [(row["step"], row["tokens"]) for row in even]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in even], rel=1e-5)
