"""Typed settings of a run: one source for the TOML file, the command line and the documentation.

Each setting is declared once, with its meaning below it. A setting marked `FIXED` decides which numbers a run
computes, so a run that is resumed must keep it; the others may change between two starts of the same run.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from luwu.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIXED = "fixed"
"""Mark of a setting that a resumed run must keep."""

SIZE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


SIZE_LIMIT = 2**63
"""Bound of sizes: native code counts bytes in 64 bits."""


def parse_size(value: object) -> int:
    """Return the bytes of a size such as 8GiB or 512 MB, or of an integer.

    Raises:
        ConfigError: it has no unit, or is `SIZE_LIMIT` or more.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        count = value
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
        if match is None or match[2].upper() not in SIZE_UNITS:
            raise ConfigError(
                f"expected a size with its unit, such as 8GiB, 512MiB or 2000000000B, found {shown(value)}"
            )
        count = int(min(Decimal(match[1]), Decimal(SIZE_LIMIT)) * SIZE_UNITS[match[2].upper()])
    if count >= SIZE_LIMIT:
        raise ConfigError(f"expected a size below {format_size(SIZE_LIMIT)}, found {shown(value)}; name a smaller one")
    return count


SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """Return a value for an error's message, cut if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # of an integer with more than 4300 digits, or of tables thousands deep
        text = "what is too long to show"
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def absolute(value: object) -> str:
    """Return the absolute form of a path, so that a saved run means the same from any working directory.

    Raises:
        ConfigError: see `check_name`; or it is no path, or begins with the home folder of a user that is not known.
    """
    if not isinstance(value, str | Path):  # of a settings file
        raise ConfigError(f"expected a path, found {shown(value)}")
    try:
        path = Path(value).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(
            f"expected a path in a home folder that exists, found {shown(str(value))}; name the folder itself"
        ) from None
    check_name(path)
    return str(path)


def has_utf8(text: str) -> bool:
    """Tell whether a text can be encoded in UTF-8: it has no lone surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def check_name(path: Path) -> None:
    """Refuse a path that settings and native code, which have it in UTF-8, cannot name; raises ConfigError."""
    name = str(path)
    if "\0" in name:
        raise ConfigError(f"expected a path without a zero byte, found {shown(name)}; correct it")
    if not has_utf8(name):
        raise ConfigError(f"expected a path in UTF-8, found {name!a}; rename it, or name a link to it")


def format_size(count: int) -> str:
    """Return a number of bytes in the largest unit that is exact: 8GiB."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count % SIZE_UNITS[unit.upper()] == 0:
            return f"{count // SIZE_UNITS[unit.upper()]}{unit}"
    return f"{count}B"


def absolute_unless_host(value: object) -> str:
    """Return the absolute form of a path; ``host`` stays as it is."""
    return "host" if value == "host" else absolute(value)


Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1, lt=SIZE_LIMIT)]
AbsolutePath = Annotated[str, BeforeValidator(absolute)]


def check_folders(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders that a store is striped over; raises ConfigError if a folder is there twice, by any name."""
    seen: set[str] = set()
    for folder in folders:
        place = os.path.realpath(folder)
        if place in seen:
            raise ConfigError(
                f"expected each folder once, found {folder} there twice; leave it out, or name a folder on another disk"
            )
        seen.add(place)
    return folders


StoreFolders = Annotated[tuple[AbsolutePath, ...], AfterValidator(check_folders)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, le=1e30, allow_inf_nan=False)]
"""Number above zero that is also one in float32."""
NotNegative = Annotated[float, Field(ge=0.0, le=1e30, allow_inf_nan=False)]
LONGEST_SECONDS = 1e8
"""Bound of times, three years: native code counts nanoseconds in 64 bits."""
Seconds = Annotated[float, Field(gt=0.0, le=LONGEST_SECONDS, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0.0, le=LONGEST_SECONDS, allow_inf_nan=False)]
"""Number of seconds, like `Seconds`, or 0."""
Count = Annotated[int, Field(ge=1, le=2**53)]
"""Number of things that happen one after another; floats tell all of them apart."""
CountOrZero = Annotated[int, Field(ge=0, le=2**53)]
"""Number of things, like `Count`, or 0."""
Sequences = Annotated[int, Field(ge=1, le=2**24)]
"""Number of sequences that are listed."""
MOST_TOKENS = 2**24
"""Bound of the tokens of a sequence, and of a vocabulary."""
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Workers = Annotated[int, Field(ge=1, le=2**20)]
Layers = Annotated[int, Field(ge=1, le=100_000)]
Width = Annotated[int, Field(ge=1, le=2**20)]
Port = Annotated[int, Field(ge=0, lt=1 << 16)]

MOST_PARAMETERS = 2**44
"""Bound of the parameters in a GPT's layers, 17.6 trillion, that keeps lists of chunks at a length that can be made."""
Dtype = Literal["float32", "bfloat16", "float16"]


def check_pattern(value: str) -> str:
    """Return a pattern of block names; raises ConfigError for an empty one or a set of characters that does not end."""
    if not value or "[" in re.sub(r"\[!?\]?[^\]]*\]", "", value):
        raise ConfigError(f"expected a pattern of block names with every [ to have its ], found {shown(value)}")
    return value


BlockPattern = Annotated[str, AfterValidator(check_pattern)]
ROOT = "<root>"
GPT_PARTS = ("tokens", "positions", "norm")
"""Modules of the GPT beside its blocks that a pattern may match, as in `luwu.models.gpt`; that module loads torch."""


class Group(BaseModel):
    """A group of settings: unknown names are refused, and the text below each field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


GroupT = TypeVar("GroupT", bound=Group)


class ModelSettings(Group):
    """The shape of the GPT, or another model."""

    path: Annotated[AbsolutePath | None, FIXED] = None
    """causal language model of transformers: its config.json, or a folder with it and weights; without it, a GPT"""
    layers: Annotated[Layers, FIXED] = 4
    """transformer layers of the GPT, each one block in the store"""
    hidden: Annotated[Width, FIXED] = 128
    """width of the residual stream; a multiple of heads"""
    heads: Annotated[Width, FIXED] = 4
    """attention heads"""
    seq: Annotated[Tokens, FIXED, Field(ge=2)] = 128
    """sequence length in tokens, which are bytes without a tokenizer"""
    dropout: Annotated[Fraction, FIXED] = 0.0
    """share of activations dropped while training"""

    @model_validator(mode="after")
    def shape_is_of_the_gpt(self) -> ModelSettings:
        """Refuse a shape for another model, which has its shape from its own configuration."""
        fields = type(self).model_fields
        for name in ("layers", "hidden", "heads", "dropout"):
            if self.path is not None and getattr(self, name) != fields[name].default:
                raise ConfigError(
                    f"model.{name}: expected none beside model.path, found {getattr(self, name)}; "
                    f"change it in {self.path} or leave it out"
                )
        return self

    @model_validator(mode="after")
    def layers_can_be_listed(self) -> ModelSettings:
        """Refuse a model that no cluster could hold: its forecast would take hours."""
        most = MOST_PARAMETERS // (12 * self.hidden**2)
        if self.layers > most:
            raise ConfigError(
                f"model.layers: expected at most {most} of this hidden ({self.hidden}), found {self.layers}; take "
                "fewer layers or a smaller hidden"
            )
        return self

    @model_validator(mode="after")
    def heads_divide_hidden(self) -> ModelSettings:
        """Refuse heads that do not divide the width: every head gets the same number of channels."""
        if self.hidden % self.heads:
            nearest = max(1, round(self.hidden / self.heads)) * self.heads
            raise ConfigError(
                f"model.hidden: expected a multiple of model.heads ({self.heads}), found {self.hidden}; "
                f"set hidden to {nearest} or choose heads that divide {self.hidden}"
            )
        return self


class DataSettings(Group):
    """The text to learn from, and the share of it that validation uses."""

    path: Annotated[AbsolutePath | None, FIXED] = None
    """file or folder to learn from (text, JSONL, Parquet); without it, the Python standard library's source"""
    tokenizer: Annotated[AbsolutePath | None, FIXED] = None
    """tokenizer.json, or a folder with one, that makes tokens of text; without it, every byte is a token"""
    end_token: Annotated[str | None, FIXED] = None
    """token put after each document; without it, the end-of-text token that the tokenizer has"""
    text_field: Annotated[str, FIXED] = "text"
    """field of JSONL, and column of Parquet, that holds the text"""
    validation_fraction: Annotated[Share, FIXED, Field(gt=0.0, le=0.5)] = 0.05
    """share of the text held back for validation"""
    validation_windows: Count = 256
    """sequences of held-back text that validation looks at"""


OptimizerName = Literal["adamw", "adamw8bit", "adam", "sgd", "lion", "adagrad"]
OPTIMIZER_NAMES: tuple[str, ...] = get_args(OptimizerName)


class OptimizerSettings(Group):
    """The optimizer, its warmup and its cosine decay."""

    name: Annotated[OptimizerName, FIXED] = "adamw"
    """optimizer, whose states the store keeps; adamw8bit keeps adamw's in 8 bits"""
    lr: Positive | None = None
    """highest learning rate, reached after warmup; default: by optimizer and width, see docs/optimizers.md"""
    final_lr_fraction: Share = 0.1
    """learning rate at the last step as a share of the highest"""
    warmup_steps: CountOrZero = 50
    """steps over which the learning rate grows from zero"""
    beta1: Fraction = 0.9
    """decay of the running mean of gradients; for lion, share of it in the direction"""
    beta2: Fraction = 0.95
    """decay of the running mean of squared gradients; for lion, of that of gradients"""
    eps: Positive = 1e-8
    """added to the root that adamw, adam and adagrad divide by"""
    momentum: Fraction = 0.9
    """share of its last direction that sgd keeps"""
    weight_decay: NotNegative = 0.1
    """weight decay, decoupled for adamw and lion, part of the gradient for the others"""
    decays: Literal["all", "matrices"] = "all"
    """parameters that decay: all, or matrices (and no biases, norms and other vectors)"""
    max_grad_norm: Positive | None = None
    """clip the gradient to this global norm, and log the norm of every step; default: no clipping"""

    def rate(self, step: int, steps: int) -> float:
        """Return the rate of the step after `step` committed ones, of `steps` in all: linear warmup, then a cosine."""
        assert self.lr is not None, "a run has chosen its rate before its first step"
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.lr * (self.final_lr_fraction + (1.0 - self.final_lr_fraction) * cosine)


class RunSettings(Group):
    """Length of the run, number of workers, and resources."""

    steps: Count = 1500
    """optimizer steps of the whole run"""
    batch: Annotated[Sequences, FIXED] = 16
    """sequences a step, over all workers together"""
    micro_batch: Sequences | None = None
    """sequences a worker computes at a time, inside each block: less memory, same traffic; default: its whole share"""
    eval_every: CountOrZero = 0
    """steps between two measurements of the validation loss; 0: it is measured after the last step alone"""
    workers: Workers = 2
    """worker processes; another number trains on the same samples in the same order"""
    seed: Annotated[int, FIXED, Field(ge=0, lt=2**63)] = 0
    """seed of the initial parameters, the order of the data and dropout"""
    dtype: Annotated[Dtype, FIXED] = "float32"
    """dtype that workers compute in: float32, bfloat16 or float16; the optimizer keeps float32 masters either way"""
    block_dtypes: Annotated[dict[BlockPattern, Dtype], FIXED] = {}
    """other dtypes for some blocks, by pattern of their names, or <root>: the first pattern that matches counts"""
    device: Literal["cpu", "cuda"] = "cpu"
    """device that workers compute on: cpu or cuda; each worker takes a GPU of its own"""
    device_memory: Size | None = None
    """memory of each GPU for blocks that stay there between uses, for example 8GiB; default: no blocks stay"""
    checkpoint: bool = True
    """recompute each block's activations in the backward pass instead of keeping them"""
    offload: Annotated[str, BeforeValidator(absolute_unless_host)] | None = None
    """folder that keeps blocks' inputs until the backward pass, or host (with cuda); default: the device keeps them"""
    memory: Size = 8 * 2**30
    """memory budget of the server, for example 8GiB"""
    snapshot_every: CountOrZero = 0
    """committed steps between two snapshots of the store; 0: none are taken"""
    snapshot_keep: CountOrZero = 2
    """number of those snapshots that stay, the newest; each takes the room of half the store; 0: all"""
    disk_full_wait_seconds: SecondsOrZero = 3600.0
    """seconds that a full disk may pause the run, which continues by itself when there is room; 0: it ends the run"""
    stores: Annotated[StoreFolders, FIXED] = ()
    """folders that hold the store, striped over all of them; without any, a folder inside the run folder"""


class SampleSettings(Group):
    """The text generated after training."""

    length: Tokens = 400
    """tokens to generate"""
    temperature: Positive = 0.9
    """randomness: towards 0 the likeliest token always wins, 1 samples from the model's probabilities"""


class Settings(Group):
    """Every setting of a run."""

    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    run: RunSettings = RunSettings()
    sample: SampleSettings = SampleSettings()

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
        """Refuse patterns that match no block of the GPT.

        Those of another model are checked when a worker has built it.
        """
        if self.model.path is not None or not self.run.block_dtypes:
            return self
        names = [*GPT_PARTS, *(f"blocks.{number}" for number in range(self.model.layers))]
        for pattern in self.run.block_dtypes:
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


def build(kind: type[GroupT], *overlays: Mapping[str, Mapping[str, Any]]) -> GroupT:
    """Build any group of groups, as `build_settings` does."""
    merged: dict[str, dict[str, Any]] = {}
    for overlay in overlays:
        for group, values in overlay.items():
            if not isinstance(values, Mapping):
                raise ConfigError(f"{group}: expected a table of settings such as [{group}], found {shown(values)}")
            merged.setdefault(group, {}).update(values)
    try:
        return kind.model_validate(merged)
    except ValidationError as error:
        raise _config_error(kind, error) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a settings file; ConfigError if it cannot be read or is not TOML."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"settings file {path}: cannot be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"settings file {path}: expected TOML in UTF-8, found {error}; correct the file") from None
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"settings file {path}: expected TOML, found a mistake: {error}{_line_of(text, str(error))}"
        ) from None
    except (ValueError, RecursionError):
        raise ConfigError(
            f"settings file {path}: expected TOML of settings, found a number of thousands of digits or lists "
            "thousands deep; correct the file"
        ) from None


def _line_of(text: str, mistake: str) -> str:
    """Return the line that TOML's error message names, with a mark below its column; empty if it names none."""
    place = re.search(r"\(at line (\d+), column (\d+)\)", mistake)
    lines = text.splitlines()
    if place is None or not 0 < int(place[1]) <= len(lines):
        return ""
    line = lines[int(place[1]) - 1].replace("\t", " ")
    return f"\n  {line}\n  {' ' * (int(place[2]) - 1)}^"


def to_toml(settings: Settings) -> str:
    """Return the settings as a TOML file that explains each of them."""
    lines: list[str] = []
    for group_name, group in settings:
        lines.append(f"[{group_name}]")
        for name, value in group:
            lines.append(f"# {describe(group_name, name)}")
            shown = format_size(value) if _is_size(group_name, name) else value
            lines.append(f"# {name} = (not set)" if value is None else f"{name} = {_toml_value(shown)}")
        lines.append("")
    return "\n".join(lines)


def describe(group: str, name: str, kind: type[Group] = Settings) -> str:
    """Return the meaning of one setting, as declared with it."""
    return _fields(kind, group)[name].description or ""


def default_text(group: str, name: str) -> str:
    """Return the default of one setting as a user would write it; empty if it has none."""
    value = getattr(getattr(Settings(), group), name)
    if value is None or value in ((), {}):
        return ""
    return format_size(value) if _is_size(group, name) else str(value).lower()


def _is_size(group: str, name: str) -> bool:
    """Return True if a setting counts bytes, which people write with a unit."""
    return any(getattr(mark, "func", None) is parse_size for mark in _fields(Settings, group)[name].metadata)


def check_resume(saved: Settings, wanted: Settings) -> None:
    """Refuse to go on with a run under settings that would change what it computes.

    Raises:
        ConfigError: naming the first fixed setting that differs.
    """
    for group, name in _fixed_settings():
        before, now = getattr(getattr(saved, group), name), getattr(getattr(wanted, group), name)
        if before != now:
            raise ConfigError(
                f"{group}.{name}: the run was started with {before!r}, found {now!r}; "
                "leave it as it was to go on, or start another run with --run"
            )


def fixed_values(settings: Settings) -> dict[str, Any]:
    """Return the settings that a resumed run must keep, by name such as ``model.layers``, with values as in JSON."""
    dumped = settings.model_dump(mode="json")
    return {f"{group}.{name}": dumped[group][name] for group, name in _fixed_settings()}


def _fixed_settings() -> Iterator[tuple[str, str]]:
    for group in Settings.model_fields:
        yield from ((group, name) for name, field in _fields(Settings, group).items() if FIXED in field.metadata)


def _fields(kind: type[Group], group: str) -> Mapping[str, FieldInfo]:
    """Return the settings of a group, or the groups if no group has this name."""
    field = kind.model_fields.get(group)
    annotation = field.annotation if field else kind
    assert isinstance(annotation, type) and issubclass(annotation, Group)
    return annotation.model_fields


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped) + '"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_value(name)} = {_toml_value(item)}" for name, item in value.items()) + "}"
    return repr(value)


def _config_error(kind: type[Group], error: ValidationError) -> ConfigError:
    """Return the first complaint of pydantic as a ConfigError in our own words."""
    first = error.errors()[0]
    where = first["loc"][:-2] if first["loc"][-1:] == ("[key]",) else first["loc"]
    place = ".".join(str(part) for part in where if not isinstance(part, int))
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):
        text = str(inner)
        return ConfigError(
            text if text.startswith(tuple(f"{group}." for group in kind.model_fields)) else f"{place}: {text}"
        )
    if first["type"] == "extra_forbidden":
        known = _fields(kind, str(first["loc"][0]))
        return ConfigError(f"{place}: no such setting; expected one of {', '.join(known)}")
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return ConfigError(
        f"{place}: expected {expected}, found {shown(first['input'])}; change it in the settings or its flag"
    )
