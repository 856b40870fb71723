"""Ray Train with LuWu's workers: one that is killed is replaced alone, and a server that is killed comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import luwu
from harness.cluster_training import is_same, processes_at_gate, train
from harness.network.namespaces import wait_until

os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray keeps a token in the user's home folder
ray = pytest.importorskip("ray", reason="Ray is not installed: make test-clusters does that")

from luwu.errors import ConfigError, LuwuError  # noqa: E402
from luwu.integrations.ray import LuwuTrainer  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


def loop(settings: dict[str, str]) -> None:
    folder = Path(settings["folder"])
    with luwu.connect() as session:
        (folder / f"starts-{session.rank}").open("a").write(f"{os.getpid()} of {session.workers}\n")
        values = train(session, folder)
        if session.rank == 0:
            torch.save(values, folder / "values.pt")
    ray.train.report({"step": session.step})


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": environment}, log_to_driver=True)
    yield
    ray.shutdown()


def trainer(folder: Path, workers: int | tuple[int, int] = 2, failures: int = 2) -> LuwuTrainer:
    return LuwuTrainer(
        loop,
        train_loop_config={"folder": str(folder)},
        server={"stores": [str(folder / "store")], "memory": "64MiB"},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(
            storage_path=str(folder / "ray"), failure_config=ray.train.FailureConfig(max_failures=failures)
        ),
    )


def starts(folder: Path, rank: int) -> list[int]:
    """Return the processes that have been the worker of a rank."""
    file = folder / f"starts-{rank}"
    return [int(line.split()[0]) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "gate").touch()
    trainer(folder).fit()
    return torch.load(folder / "values.pt")


def at_gate(folder: Path) -> bool:
    return len(processes_at_gate(folder)) == 2


def test_a_killed_worker_is_replaced_alone(undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(trainer(tmp_path).fit)
        wait_until(lambda: at_gate(tmp_path) or training.done(), "the gate", 120)
        os.kill(starts(tmp_path, 1)[0], signal.SIGKILL)
        wait_until(lambda: len(starts(tmp_path, 1)) == 2 or training.done(), "another worker 1", 120)
        (tmp_path / "gate").touch()
        training.result(120)
    assert is_same(torch.load(tmp_path / "values.pt"), undisturbed)
    assert len(starts(tmp_path, 0)) == 1


def test_a_killed_server_comes_back(undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    made = trainer(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(made.fit)
        wait_until(lambda: at_gate(tmp_path) or training.done(), "the gate", 120)
        ray.kill(made._server, no_restart=False)
        (tmp_path / "gate").touch()
        training.result(200)
    assert is_same(torch.load(tmp_path / "values.pt"), undisturbed)
    assert [len(starts(tmp_path, rank)) for rank in range(2)] == [2, 2]


@pytest.mark.parametrize(
    ("server", "kind", "message"),
    [
        ({"store": ["x"]}, ConfigError, r"server\['store'\]: there is no such setting; expected some of advertise, "),
        ({"stores": ["x"], "workers": 3}, ConfigError, r"server\['workers'\]: the trainer sets it;"),
        (
            {"stores": "x"},
            ConfigError,
            r'server\["stores"\]: expected a list of folders, found \'x\'; put it into a list',
        ),
        ("--store x", ConfigError, r"server: expected settings by name, .* found '--store x'"),
        ({"stores": ["/proc/x"]}, LuwuError, "/proc/x"),
    ],
)
def test_a_server_that_cannot_work_is_refused(server: object, kind: type[LuwuError], message: str) -> None:
    with pytest.raises(kind, match=message):
        LuwuTrainer(loop, server=server)


def test_a_node_that_ray_does_not_have_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"server_node: expected the IP address of a node, found 192\.0\.2\.99; Ray has "
    ):
        LuwuTrainer(loop, server={"stores": ["unused"]}, server_node="192.0.2.99")
