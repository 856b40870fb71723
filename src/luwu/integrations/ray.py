"""A trainer of Ray Train whose workers share a LuWu server: Ray replaces a lost worker, and the others wait for it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.train import ScalingConfig
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util import get_node_ip_address

from luwu.control.address import HostPort
from luwu.control.credentials import Credentials
from luwu.core.errors import ConfigError, LuwuError, error_named
from luwu.core.settings import build
from luwu.launch.cluster_job import WORKER_RETURN_SECONDS
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerFile, ServerSettings

NOT_YOURS = {"workers", "min_workers", "key_file", "listen"}
"""Settings of a server that the trainer sets."""

CLOSE_SECONDS = 120.0
"""Seconds that the server has to end."""


class StoreServer:
    """Actor that serves a store on its node."""

    def __init__(self, settings: ServerSettings, key: bytes) -> None:
        self._failure: tuple[str, str] | None = None
        try:
            self._server = NetworkServer(settings, Credentials(key))
        except LuwuError as error:  # an actor that does not come up is started again and again
            self._failure = type(error).__name__, str(error)

    def failure(self) -> tuple[str, str] | None:
        """Return the class and the message of the error that it could not serve for; None: it serves."""
        return self._failure

    def url(self) -> str:
        """Return the address for workers; another one after each start of the actor."""
        if self._failure is not None:
            raise error_named(self._failure[0])(self._failure[1])
        return HostPort(get_node_ip_address(), self._server.port).url

    def close(self) -> None:
        """End the server. The store stands at the last commit."""
        self._server.close()


@dataclass
class LuwuConfig(BackendConfig):  # type: ignore[misc]  # Ray is not among the development requirements
    """Facts that Ray Train tells the workers of a run: the handle of the `StoreServer` actor, and the job key."""

    server: Any
    key: bytes = field(repr=False)

    @property
    def backend_cls(self) -> type[Backend]:
        """The class that prepares the workers."""
        return LuwuBackend


class LuwuBackend(Backend):  # type: ignore[misc]
    """Puts each worker's place and the server's address into its environment, where `luwu.connect` finds them."""

    has_replica_groups = True  # so that Ray replaces one worker, where its version can, and not all of them

    def on_training_start(self, worker_group: Any, backend_config: LuwuConfig) -> None:
        """Prepare all workers, or one that takes the place of a lost one."""
        url = ray.get(backend_config.server.url.remote())
        worker_group.execute(_set_environment, url, backend_config.key)


def _set_environment(url: str, key: bytes) -> None:
    context = ray.train.get_context()
    os.environ.pop("LUWU_JOB_KEY_FILE", None)  # the job has a key of its own
    os.environ |= {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LUWU_SERVER": url,
        "LUWU_JOB_KEY": key.decode(),
    }


class LuwuTrainer(DataParallelTrainer):  # type: ignore[misc]
    """Trainer of Ray Train whose training function calls `luwu.connect()` without arguments.

    ``FailureConfig.max_failures`` of the run says how many lost workers it bears. A loop that gives `optim.step` a
    closure goes on where another worker was lost; see "A server, and programs of your own" in docs/start.md.

    Args:
        train_loop_per_worker: function of one worker.
        server: settings of `luwu server` by name, such as ``{"stores": ["/nvme0/run"], "memory": "32GiB"}``. The number
            of workers, and the least of them, are those of the scaling config.
        server_node: IP address of the node that has the store's folders; default: the one where the trainer is made.
        server_options: further options of the server's actor, such as ``{"num_cpus": 8}``; without that it takes none
            of Ray's processors.
        scaling_config: number of workers and their resources. With a range of workers, Ray starts all of them again
            when their number changes.
        settings: the other settings of Ray's `DataParallelTrainer`.

    Raises:
        ConfigError: settings of the server that cannot work, or the cluster has no such node. Others: the server cannot
            use its folders there, see `NetworkServer`.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        server: Mapping[str, Any],
        server_node: str = "",
        server_options: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        **settings: Any,
    ) -> None:
        scaling_config = scaling_config or ScalingConfig()
        _check(server)
        wanted = {"listen": "0.0.0.0:0", "worker_return_seconds": WORKER_RETURN_SECONDS, **server}
        served = build(ServerFile, {"server": {**wanted, **_numbers_of(scaling_config.num_workers)}}).server
        key = secrets.token_hex(32).encode()
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, **(server_options or {})}
        node = _resource_of(server_node or get_node_ip_address())
        options["resources"] = {**options.get("resources", {}), node: 0.001}
        self._server = ray.remote(StoreServer).options(**options).remote(served, key)
        if failure := ray.get(self._server.failure.remote()):
            ray.kill(self._server)
            raise error_named(failure[0])(failure[1])
        super().__init__(
            train_loop_per_worker, backend_config=LuwuConfig(self._server, key), scaling_config=scaling_config,
            **settings,
        )  # fmt: skip

    def fit(self) -> Any:
        """Train, as Ray's trainer does, and end the server."""
        try:
            return super().fit()
        finally:
            with suppress(GetTimeoutError, RayActorError):  # its node may be lost
                ray.get(self._server.close.remote(), timeout=CLOSE_SECONDS)
            ray.kill(self._server)


def _check(server: Mapping[str, Any]) -> None:
    """Refuse settings of a server that it cannot have here. Their values are checked later."""
    if not isinstance(server, Mapping):
        raise ConfigError(f'server: expected settings by name, such as {{"stores": ["/nvme0/run"]}}, found {server!r}')
    possible = sorted(ServerSettings.model_fields.keys() - NOT_YOURS)
    for name in server:
        if name not in possible:
            why = "the trainer sets it" if name in NOT_YOURS else "there is no such setting"
            raise ConfigError(f"server[{name!r}]: {why}; expected some of {', '.join(possible)}")
    if isinstance(server.get("stores"), str):
        raise ConfigError(
            f'server["stores"]: expected a list of folders, found {server["stores"]!r}; put it into a list'
        )


def _resource_of(node: str) -> str:
    """Return the resource that Ray gives the node of an IP address; raises ConfigError where there is no such node."""
    if not ray.is_initialized():
        ray.init()  # as fit() would
    nodes = sorted(each["NodeManagerAddress"] for each in ray.nodes() if each["Alive"])
    if node not in nodes:
        raise ConfigError(f"server_node: expected the IP address of a node, found {node}; Ray has {', '.join(nodes)}")
    return f"node:{node}"


def _numbers_of(workers: int | tuple[int, int]) -> dict[str, int]:
    if isinstance(workers, int):
        return {"workers": workers}
    return {"min_workers": workers[0], "workers": workers[1]}
