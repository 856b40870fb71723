"""A checkpoint that a model starts from: tensor by tensor, under the model's names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from luwu.core.errors import CheckpointError
from luwu.store.checkpoint import CheckpointReader, listed
from luwu.store.pretrained import PretrainedReader
from luwu.store.sources import OTHER_CHECKPOINT, TensorReader, check_tensor, extra_names
from luwu.worker.recipes import adapter_parameters, is_pretrained, plain_name


class CheckpointWeights:
    """Finds each parameter and persistent buffer of a model in a checkpoint; needs memory for the tensor being read.

    The names are the model's own, of a model that peft wrapped those of the model inside; adapters are not looked for.
    Tied parameters need one of their names.

    Args:
        model: a model, on meta or not, before it is parallelized.
        path: a safetensors file, an index, or a folder with either.

    Raises:
        CheckpointError: a file is missing or damaged, tensors are missing, or there are others, or a shape is another.
    """

    def __init__(self, model: nn.Module, path: str | Path) -> None:
        state = model.state_dict(keep_vars=True)
        adapters = adapter_parameters(model)
        self._tensors = {
            name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor) and id(tensor) not in adapters
        }
        inner: Any = next((module for module in model.modules() if is_pretrained(module)), None)
        plain = {plain_name(name) for name in self._tensors}
        reader = CheckpointReader(path)
        self._reader: TensorReader = reader if inner is None else PretrainedReader(reader, inner, plain)
        self._there = set(self._reader.names())
        self._found = self._match_tensors()
        self._check_names(plain, getattr(inner, "_keys_to_ignore_on_load_unexpected", None) or ())
        for name, source in self._found.items():
            tensor = self._tensors[name]
            check_tensor(self._reader, source, tuple(tensor.shape), floating=tensor.is_floating_point())

    def has(self, name: str) -> bool:
        """Return True if there are values for the model's tensor of this name."""
        return name in self._found

    def read(self, name: str) -> Tensor:
        """Return the values, in the checkpoint's dtype, on the CPU.

        Raises:
            CheckpointError: the file cannot be read any more.
        """
        source = self._found[name]
        shape = self._reader.shape(source)
        return self._reader.read_range(source, 0, math.prod(shape)).view(shape)

    def _match_tensors(self) -> dict[str, str]:
        """Return by the model's name of a tensor its name in the checkpoint, perhaps of one that it is tied to."""
        # `match_parameters` of the store matches the parameters of a manifest, each once for all its tied names. These
        # are a live model's tensors, buffers included, each name by itself; where peft has wrapped, names have changed.
        of_tensor = {
            id(tensor): plain_name(name) for name, tensor in self._tensors.items() if plain_name(name) in self._there
        }
        found = {
            name: plain_name(name) if plain_name(name) in self._there else of_tensor.get(id(tensor))
            for name, tensor in self._tensors.items()
        }
        return {name: source for name, source in found.items() if source is not None}

    def _check_names(self, plain: set[str], ignored: list[str] | tuple[str, ...]) -> None:
        missing = [plain_name(name) for name in self._tensors if name not in self._found]
        if missing:
            raise CheckpointError(
                f"{self._reader.path}: {len(missing)} of {len(plain)} tensors are missing: {listed(missing)}; "
                f"{OTHER_CHECKPOINT}"
            )
        extra = extra_names(self._reader, plain, ignored)
        if extra:
            raise CheckpointError(
                f"{self._reader.path}: {len(extra)} tensors are not the model's: {listed(extra)}; {OTHER_CHECKPOINT}"
            )
