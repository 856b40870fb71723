"""Settings of `luwu server`: one source for its flags, its TOML file and the documentation."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field, model_validator

from luwu.control.credentials import CredentialSettings
from luwu.control.exposition import MetricsPlace
from luwu.control.timeouts import Timeouts
from luwu.core.aggregation import MEAN, Aggregation, trims_for
from luwu.core.errors import ConfigError
from luwu.core.quantities import Port, SecondsOrZero, Size, StoreFolders, Workers
from luwu.core.settings import TOML_ONLY, Flag, Group
from luwu.store.settings import DiskSettings


class ServerSettings(DiskSettings, CredentialSettings):
    """Settings of a server: its store, its workers, and the addresses that it listens at."""

    stores: Annotated[StoreFolders, Field(min_length=1), Flag("--store")]
    """folders that hold the store, striped over all of them; made where missing"""
    workers: Workers
    """workers that make a step together; another number may continue with the same store"""
    min_workers: Annotated[int, Field(ge=0, le=2**20)] = 0
    """fewest workers of a run; its first worker says how many there are, up to --workers; 0: exactly --workers"""
    memory: Size = 8 * 2**30
    """memory budget for parameters, optimizer states and gradients, for example 8GiB"""
    listen: str = "0.0.0.0:7070"
    """HOST:PORT of the control plane; port 0: the kernel chooses one"""
    data_port: Port = 0
    """port of the data plane, on the same host; 0: the kernel chooses one"""
    advertise: str = ""
    """host of the data plane, as workers reach it; empty: the host of the control plane"""
    transport: Literal["tcp", "udp"] = "tcp"
    """data plane of training steps: tcp, each worker's own connection; udp, one stream for all through switches"""
    plain_data: bool = False
    """agree that parameters and gradients travel unencrypted over udp although there are certificates"""
    udp_port: Port = 0
    """port of the transport udp, on the same host; 0: the kernel chooses one"""
    form: Literal["int32", "int16", "float32"] = "int32"
    """form of gradients over udp: integers with shared exponents, whose sum is exact, or floats"""
    multicast: str = ""
    """GROUP:PORT that parameters go to, once for all workers, over udp; empty: switches copy them"""
    switches: Annotated[int, Field(ge=0, le=2**20)] = 0
    """switches that must have joined before a run begins, over udp; 0: the server has one of its own"""
    worker_return_seconds: SecondsOrZero = 0.0
    """time that a run waits for another worker at the place of a lost one; 0: the run ends with it"""
    step_deadline_seconds: SecondsOrZero = 0.0
    """time without progress, while others wait, after which a worker counts as lost; 0: they wait on"""
    aggregate: Aggregation = "mean"
    """gradient of a step: the workers' mean, median, trimmed, or "trimmed 2": without the outermost values; over tcp"""
    standby_of: str = ""
    """luwu://HOST:PORT of a server whose store this one is to have, too, at each commit; empty: this is no standby"""
    take_over_after: SecondsOrZero = 0.0
    """time without a word of that server after which the standby takes over by itself; 0: only when it is told"""
    optimizer_threads: Annotated[int, Field(ge=1, le=4096)] = Field(
        default_factory=lambda: len(os.sched_getaffinity(0))
    )
    """threads of the update; default: the processors that this process may use"""
    metrics: MetricsPlace = ""
    """HOST:PORT that answers Prometheus over HTTP, or :PORT on this machine alone; empty: nothing does"""

    @model_validator(mode="after")
    def switches_add_alone(self) -> ServerSettings:
        """Refuse all but the mean over udp, where the server gets the workers' sum alone."""
        if self.transport == "udp" and self.aggregate != MEAN:
            raise ConfigError(
                f"server.aggregate: expected mean over udp, where switches add the gradients, found {self.aggregate}; "
                "use --transport tcp"
            )
        return self

    @model_validator(mode="after")
    def workers_can_be_aggregated(self) -> ServerSettings:
        """Refuse numbers of workers that have no such average."""
        for workers in (self.min_workers or self.workers, self.workers):
            trims_for(self.aggregate, workers, "server.aggregate")
        return self

    @model_validator(mode="after")
    def fewest_and_most_workers_fit(self) -> ServerSettings:
        """Refuse more workers at the least than at the most."""
        if self.min_workers > self.workers:
            raise ConfigError(
                f"server.min_workers: expected at most server.workers ({self.workers}), found {self.min_workers}; "
                "--workers is the most workers of a run"
            )
        return self


class ServerFile(Group):
    """The tables of a server's settings file."""

    server: ServerSettings
    timeouts: Annotated[Timeouts, TOML_ONLY] = Timeouts()
