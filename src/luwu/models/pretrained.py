"""Models of Hugging Face's transformers from their folder: built on meta, and their checkpoints read in parts.

Nothing is downloaded: a folder is one on this machine, as ``save_pretrained`` or a download leaves it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from luwu.core.errors import ConfigError
from luwu.core.quantities import shown
from luwu.models.config_file import read_config_file
from luwu.models.sizes import check_sizes
from luwu.store.sources import TensorReader

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG_NAME = "config.json"
Model = TypeVar("Model", bound=nn.Module)

SAID_CHARACTERS = 300
"""Characters of transformers' own message in an error; it may list all models."""


def load_transformers(what: str) -> ModuleType:
    """Import transformers, which takes seconds; ConfigError says ``what`` needs it where it is not installed."""
    try:
        return import_module("transformers")
    except ImportError as error:
        raise ConfigError(f"{what} the package transformers, found none; pip install transformers") from error


def on_meta(make: Callable[[], Model]) -> Model:
    """Make a model, of any kind, without memory for its parameters."""
    with torch.device("meta"):
        return make()


def build_on_meta(folder: Path) -> PreTrainedModel:
    """Build the model that a folder's config.json describes, without memory for its parameters.

    Raises:
        ConfigError: transformers is not installed, there is no such file, or it names no architecture of this
            transformers.
    """
    transformers = load_transformers("models of Hugging Face: need")
    if not (folder / CONFIG_NAME).is_file():
        raise ConfigError(f"{folder}: expected {CONFIG_NAME} there, found none; name the folder of a model")
    named = read_config_file(folder / CONFIG_NAME, "model").get("architectures") or []
    if not isinstance(named, list):
        raise ConfigError(f"{folder / CONFIG_NAME}: architectures: expected names of classes, found {shown(named)}")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a class of transformers raises what it likes
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{folder / CONFIG_NAME}: {said}; correct the file") from error
    names = [str(name) for name in config.architectures or ()]
    kind = getattr(transformers, names[0], None) if names else None
    if kind is None:
        raise ConfigError(
            f"{folder / CONFIG_NAME}: architectures: expected a class of transformers {transformers.__version__}, "
            f"found {names}; name it there, such as LlamaForCausalLM"
        )
    try:
        return on_meta(partial(kind, config))
    except Exception as error:
        raise ConfigError(
            f"{folder / CONFIG_NAME}: expected what {names[0]} can be built of, found {type(error).__name__}: {error}; "
            "correct the file"
        ) from error


def ignored_names(model: PreTrainedModel) -> list[str]:
    """Regular expressions of tensors that a checkpoint may hold without the model having a parameter of that name."""
    buffers = [f"^{re.escape(name)}$" for name, _ in model.named_buffers()]
    return [*buffers, *(str(each) for each in model._keys_to_ignore_on_load_unexpected or ())]


def read_buffers(model: PreTrainedModel, reader: TensorReader) -> dict[str, Tensor]:
    """The buffers of the model that the checkpoint holds: the statistics of batch norms, for example."""
    kept, there = set(model.state_dict()), set(reader.names())
    return {
        name: reader.read_range(name, 0, buffer.numel()).view(buffer.shape)
        for name, buffer in model.named_buffers()
        if name in kept and name in there
    }


def build_causal_on_meta(path: Path, vocabulary: int, seq: int) -> PreTrainedModel:
    """Build the causal language model that a config.json describes, without memory for its parameters.

    Args:
        path: the file, or a folder with it.
        vocabulary: number of tokens in the data.
        seq: length of its sequences.

    Raises:
        ConfigError: transformers is not installed, the file does not describe a causal language model, or the model is
            too small for the data.
    """
    transformers = load_transformers("model.path: needs")
    file = path / CONFIG_NAME if path.is_dir() else path
    content = read_config_file(file, "model.path")
    kind = content.pop("model_type", None)
    if not isinstance(kind, str):
        raise ConfigError(f"model.path: {file}: model_type: expected the name of a kind of model, found {shown(kind)}")
    try:
        config = transformers.AutoConfig.for_model(kind, **content)
    except Exception as error:  # a class of transformers raises what it likes
        raise _not_described(file, error) from error
    _check_size(config, file, vocabulary, seq)
    try:
        model = on_meta(partial(transformers.AutoModelForCausalLM.from_config, config, dtype=torch.float32))
    except Exception as error:
        if not isinstance(error, ValueError):
            raise _not_described(file, error) from error
        raise ConfigError(
            f"model.path: expected {file} to describe a causal language model, found model_type {kind!r}; choose a "
            "model that predicts the next token"
        ) from error
    named = content.get("architectures") or [type(model).__name__]
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ConfigError(f"model.path: {file}: architectures: expected names of classes, found {shown(named)}")
    if type(model).__name__ not in named:
        raise ConfigError(
            f"model.path: expected {file} to describe a causal language model such as {type(model).__name__}, found "
            f"{', '.join(named)}; choose a model that predicts the next token"
        )
    return model


def _not_described(file: Path, error: Exception) -> ConfigError:
    """The error for a configuration that a class of transformers refuses."""
    version = load_transformers("model.path: needs").__version__
    said = (str(error).splitlines() or [""])[0][:SAID_CHARACTERS]
    return ConfigError(
        f"model.path: expected {file} to describe a model of transformers {version}, found {type(error).__name__}: "
        f"{said}; correct the file"
    )


def _check_size(config: Any, file: Path, vocabulary: int, seq: int) -> None:
    text = config.get_text_config()
    known, longest = getattr(text, "vocab_size", None), getattr(text, "max_position_embeddings", None)
    check_sizes(file, known, longest, vocabulary, seq)
