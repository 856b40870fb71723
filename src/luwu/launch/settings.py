"""Settings of a whole run, made of the groups that its parts declare."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from luwu.control.exposition import MetricsPlace
from luwu.core.aggregation import AGGREGATE, MEAN, Aggregation, require_even_shares, trims_for
from luwu.core.errors import ConfigError
from luwu.core.files import PRIVATE_MODE
from luwu.core.quantities import (
    Count,
    CountOrZero,
    Dtype,
    Positive,
    SecondsOrZero,
    Sequences,
    Size,
    StoreFolders,
    Tokens,
    Workers,
    absolute_unless_host,
    format_size,
    shown,
)
from luwu.core.settings import FIXED, TOML_ONLY, Flag, Group, build, fields_of, flag_of
from luwu.core.units import parse_endurance
from luwu.data.settings import DataSettings
from luwu.launch.on_alert import OnAlert
from luwu.models.settings import GPT_LAYER_PARTS, GPT_PARTS, ModelSettings
from luwu.observe.loggers import LogTarget
from luwu.optim.settings import OptimizerSettings
from luwu.store.settings import DiskSettings


def check_pattern(value: str) -> str:
    """Return a pattern of block names; raises ConfigError for an empty one or a set of characters that does not end."""
    if not value or "[" in re.sub(r"\[!?\]?[^\]]*\]", "", value):
        raise ConfigError(f"expected a pattern of block names with every [ to have its ], found {shown(value)}")
    return value


def parse_block_dtypes(given: list[str]) -> dict[str, str]:
    """Parse PATTERN=DTYPE flags into a mapping from pattern to dtype; raises ConfigError."""
    found: dict[str, str] = {}
    for each in given:
        pattern, equals, dtype = each.rpartition("=")
        if not (pattern and equals and dtype):
            raise ConfigError(f"--block-dtype: expected PATTERN=DTYPE such as 'blocks.0=float32', found {each!r}")
        found.setdefault(pattern, dtype)
    return found


BLOCK_DTYPE = Flag("--block-dtype", parse=parse_block_dtypes)

BlockPattern = Annotated[str, AfterValidator(check_pattern)]

ROOT = "<root>"


def check_endurance(value: str) -> str:
    """Return the text of an endurance; raises ConfigError for one without a unit."""
    parse_endurance(value)
    return value


Endurance = Annotated[str, AfterValidator(check_endurance)]
"""Text that `luwu.core.units.parse_endurance` reads."""


class ComputeSettings(Group):
    """Settings of the workers' computation: its numbers, its device, and what is kept for backward."""

    dtype: Annotated[Dtype, FIXED] = "float32"
    """dtype that workers compute in: float32, bfloat16 or float16; the optimizer keeps float32 masters either way"""
    block_dtypes: Annotated[dict[BlockPattern, Dtype], FIXED, BLOCK_DTYPE] = {}  # noqa: RUF012 - pydantic copies it
    """other dtypes for some blocks, by pattern of their names, or <root>: the first pattern that matches counts"""
    device: Literal["cpu", "cuda"] = "cpu"
    """device that workers compute on: cpu or cuda; each worker takes a GPU of its own"""
    device_memory: Size | None = None
    """memory of each GPU for blocks that stay there between uses, for example 8GiB; default: no blocks stay"""
    seed: Annotated[int, FIXED, Field(ge=0, lt=2**63)] = 0
    """seed of the initial parameters, the order of the data and dropout"""
    checkpoint: bool = True
    """recompute each block's activations in the backward pass instead of keeping them"""
    offload: Annotated[str, BeforeValidator(absolute_unless_host)] | None = None
    """folder that keeps blocks' inputs until the backward pass, or host (with cuda); default: the device keeps them"""


class RunSettings(DiskSettings, ComputeSettings):
    """Length of the run, number of workers, and resources."""

    steps: Count = 1500
    """optimizer steps of the whole run"""
    batch: Annotated[Sequences, FIXED] = 16
    """sequences a step, over all workers together"""
    micro_batch: Sequences | None = None
    """sequences a worker computes at a time, inside each block: less memory, same traffic; default: its whole share"""
    eval_every: CountOrZero = 0
    """steps between two measurements of the validation loss; 0: it is measured after the last step alone"""
    balance: bool = False
    """give faster workers (CPUs) more sequences, by measured times; the run is then not reproducible to the bit"""
    aggregate: Annotated[Aggregation, FIXED] = "mean"
    """gradient of a step: the workers' mean, median, trimmed, or "trimmed 2": a mean without the outermost values"""
    workers: Workers = 2
    """worker processes, on all machines together; another number trains on the same samples in the same order"""
    listen: str = ""
    """HOST:PORT where luwu train --join on other machines finds this run; empty: all workers run here"""
    workers_here: CountOrZero | None = None
    """workers on this machine: with --listen fewer than --workers, 0 makes it a server alone; with --join 1 or more"""
    restarts: CountOrZero = 3
    """restarts allowed in the whole run, on each machine, of workers that a signal has killed; the others wait"""
    server_return_seconds: SecondsOrZero = 60.0
    """time in which a server that was lost, or whose run failed, may come back (--server, --join); 0: the run fails"""
    step_deadline_seconds: SecondsOrZero = 0.0
    """time without progress, while others wait, after which a worker is killed and replaced; 0: they wait on"""
    stores: Annotated[StoreFolders, FIXED, Flag("--store")] = ()
    """folders that hold the store, striped over all of them; without any, a folder inside the run folder"""
    memory: Size = 8 * 2**30
    """memory budget of the server, for example 8GiB"""
    endurance: Endurance | None = None
    """bytes that each disk of the store may take in its life, such as 600TBW; the run's end says what it has taken"""
    metrics: MetricsPlace = ""
    """HOST:PORT that answers Prometheus over HTTP, or :PORT on this machine alone; empty: nothing does"""
    log: tuple[LogTarget, ...] = ()
    """other places for each step's figures: tensorboard, trackio, wandb, opentelemetry; or trackio:PROJECT"""
    on_alert: OnAlert = ""
    """command that is run, or http(s) URL that is posted to, for each alert; it gets the alert as JSON"""


class SampleSettings(Group):
    """The text generated after training."""

    length: Tokens = 400
    """tokens to generate"""
    temperature: Positive = 0.9
    """randomness: towards 0 the likeliest token always wins, 1 samples from the model's probabilities"""


class Settings(Group):
    """Every setting of a run."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    run: RunSettings = RunSettings()
    sample: Annotated[SampleSettings, TOML_ONLY] = SampleSettings()

    @property
    def ranks_here(self) -> range:
        """The workers that the machine of `luwu train` runs."""
        return range(
            self.run.workers_here if self.run.listen and self.run.workers_here is not None else self.run.workers
        )

    @property
    def file_mode(self) -> int:
        """The mode of a file that holds all settings: the command or URL of ``run.on_alert`` may have a secret."""
        return PRIVATE_MODE if self.run.on_alert else 0o666

    @property
    def ranks_elsewhere(self) -> range:
        """The workers that other machines run."""
        return range(len(self.ranks_here), self.run.workers)

    @model_validator(mode="after")
    def workers_have_work(self) -> Settings:
        """Refuse more workers than sequences: a worker without a sequence would only wait."""
        if self.run.workers > self.run.batch:
            raise ConfigError(
                f"run.workers: expected at most run.batch ({self.run.batch}) workers, so that each has a sequence, "
                f"found {self.run.workers}; use fewer workers or a larger batch"
            )
        return self

    @model_validator(mode="after")
    def workers_can_be_aggregated(self) -> Settings:
        """Refuse too few workers, or shares of a batch that differ, where gradients are not averaged."""
        run, name = self.run, "run.aggregate"
        trims_for(run.aggregate, run.workers, name)
        require_even_shares(run.aggregate, run.batch, run.workers, balance=run.balance, name=name)
        return self

    @model_validator(mode="after")
    def balance_measures_processors(self) -> Settings:
        """Refuse to balance workers on GPUs, whose time is not measured yet."""
        if self.run.balance and self.run.device != "cpu":
            raise ConfigError(
                f"run.balance: expected false with run.device = {self.run.device}, found true: the time of a GPU is "
                "not measured yet; leave it out"
            )
        return self

    @model_validator(mode="after")
    def device_memory_has_a_device(self) -> Settings:
        """Refuse device memory on a CPU: blocks are computed there in the server's memory itself."""
        if self.run.device_memory is not None and self.run.device == "cpu":
            raise ConfigError(
                f"run.device_memory: expected none with run.device = cpu, found {format_size(self.run.device_memory)}; "
                "leave it out, or compute on a GPU with --device cuda"
            )
        return self

    @model_validator(mode="after")
    def offload_has_a_device(self) -> Settings:
        """Refuse offloading to the host on a CPU: the inputs of blocks are in the host's memory already."""
        if self.run.offload == "host" and self.run.device == "cpu":
            raise ConfigError(
                "run.offload: expected a folder with run.device = cpu, found host, in whose memory blocks' inputs are "
                "already; leave it out, or compute on a GPU with --device cuda"
            )
        return self

    @model_validator(mode="after")
    def patterns_match_blocks(self) -> Settings:
        """Refuse patterns that match no block of the GPT, or a part of a layer, which has one dtype.

        Those of another model are checked when a worker has built it.
        """
        if self.model.path is not None or not self.run.block_dtypes:
            return self
        layers = [f"blocks.{number}" for number in range(self.model.layers)]
        names = [*GPT_PARTS, *layers]
        for pattern in self.run.block_dtypes:
            for layer in [] if pattern == ROOT else [layer for layer in layers if not fnmatchcase(layer, pattern)]:
                if part := next((part for part in GPT_LAYER_PARTS if fnmatchcase(f"{layer}.{part}", pattern)), ""):
                    raise ConfigError(
                        f"run.block_dtypes: {shown(pattern)} matches {layer}.{part} inside block {layer}; a block has "
                        "one dtype: name the block"
                    )
            if pattern != ROOT and not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"run.block_dtypes: {shown(pattern)} matches no block; the model has: {ROOT}, "
                    f"{', '.join(GPT_PARTS)}, blocks.0 to {names[-1]}"
                )
        return self


def build_settings(*overlays: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Settings from the defaults and then each overlay ({group: {name: value}}), later ones winning.

    Raises:
        ConfigError: naming the setting, what was expected, what was found.
    """
    return build(Settings, *overlays)


def check_resume(saved: Settings, wanted: Settings) -> None:
    """Refuse to go on with a run under settings that would change what it computes.

    Raises:
        ConfigError: naming the first fixed setting that differs.
    """
    for group, name in _fixed_settings():
        before, now = getattr(getattr(saved, group), name), getattr(getattr(wanted, group), name)
        # A server elsewhere may have made another average than its run's settings say. The store's record has it.
        if f"{group}.{name}" == AGGREGATE and before == MEAN:
            continue
        if before != now:
            raise ConfigError(
                f"{group}.{name}: the run was started with {before!r}, found {now!r}; leave "
                f"{flag_of(Settings, group, name).name} as it was to go on, or start another run with --run"
            )


def fixed_values(settings: Settings) -> dict[str, Any]:
    """Return the settings that a resumed run must keep, by name such as ``model.layers``, with values as in JSON."""
    values = all_values(settings)
    return {name: values[name] for name in (f"{group}.{name}" for group, name in _fixed_settings())}


def all_values(settings: Settings) -> dict[str, Any]:
    """Return all settings by name such as ``model.layers``, with values as in JSON."""
    groups = settings.model_dump(mode="json")
    return {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}


def _fixed_settings() -> Iterator[tuple[str, str]]:
    for group in Settings.model_fields:
        yield from ((group, name) for name, field in fields_of(Settings, group).items() if FIXED in field.metadata)
