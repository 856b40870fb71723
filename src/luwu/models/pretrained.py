"""Models of Hugging Face's transformers from their folder: built on meta, and their checkpoints read in parts.

Nothing is downloaded: a folder is one on this machine, as ``save_pretrained`` or a download leaves it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from luwu.core.errors import ConfigError
from luwu.store.sources import TensorReader

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG_NAME = "config.json"


def build_on_meta(folder: Path) -> PreTrainedModel:
    """Build the model that a folder's config.json describes, without memory for its parameters.

    Raises:
        ConfigError: transformers is not installed, there is no such file, or it names no architecture of this
            transformers.
    """
    try:
        import transformers
    except ImportError as error:
        raise ConfigError("models of Hugging Face need transformers; pip install transformers") from error

    if not (folder / CONFIG_NAME).is_file():
        raise ConfigError(f"{folder}: expected {CONFIG_NAME} there, found none; name the folder of a model")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, OSError, KeyError) as error:
        raise ConfigError(f"{folder / CONFIG_NAME}: {str(error).splitlines()[0]}; correct the file") from error
    names = [str(name) for name in config.architectures or ()]
    kind = getattr(transformers, names[0], None) if names else None
    if kind is None:
        raise ConfigError(
            f"{folder / CONFIG_NAME}: architectures: expected a class of transformers {transformers.__version__}, "
            f"found {names}; name it there, such as LlamaForCausalLM"
        )
    with torch.device("meta"):
        model: PreTrainedModel = kind(config)
    return model


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
