"""A checkpoint as what a model starts from: tensor by tensor, under the model's names."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from luwu.errors import CheckpointError
from luwu.store.checkpoint import CheckpointReader, listed
from luwu.worker.conversions import Read, Sources, find_sources, pretrained_inside
from luwu.worker.recipes import adapter_parameters, plain_name

_REMEDY = "name a checkpoint of this model, or the configuration that belongs to it"


class CheckpointWeights:
    """Finds each parameter and persistent buffer of a model in a checkpoint; memory is that of the tensor being read.

    The names are the model's own, of a model that peft wrapped those of the model inside; adapters are not looked for.
    Tied parameters need one of their names.

    Args:
        model: a model, on meta or not, before it is parallelized.
        path: a safetensors file, an index, or a folder with either.

    Raises:
        CheckpointError: a file is missing or damaged, tensors are missing, or there are others, or a shape is another.
    """

    def __init__(self, model: nn.Module, path: str | Path) -> None:
        self._reader = CheckpointReader(path)
        self._model = pretrained_inside(model)
        state = model.state_dict(keep_vars=True)
        adapters = adapter_parameters(model)
        tensors = {
            name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor) and id(tensor) not in adapters
        }
        self._shapes = {plain_name(name): tuple(tensor.shape) for name, tensor in tensors.items()}
        self._integers = {plain_name(name) for name, tensor in tensors.items() if not tensor.is_floating_point()}
        self._sources, extra = find_sources(model, self._reader.names(), self._shapes)
        self._take_ties(tensors)
        self._own = {name for name in tensors if plain_name(name) in self._sources}
        self._check_names(extra)
        self._check_tensors()

    def has(self, name: str) -> bool:
        """Whether there are values for the model's tensor of this name."""
        return name in self._own

    def read(self, name: str) -> Tensor:
        """Return the values, in the checkpoint's dtype, on the CPU.

        Raises:
            CheckpointError: the file cannot be read any more.
        """
        plain = plain_name(name)
        return self._read(plain, self._sources[plain], self._reader.read)

    def _read(self, plain: str, sources: Sources, read: Read) -> Tensor:
        values = sources.read(read, self._model)
        return values[plain] if plain in values else values[sources.target]

    def _take_ties(self, tensors: dict[str, Tensor]) -> None:
        """Let a tied tensor be found under any of its names."""
        of_tensor: dict[int, Sources] = {}
        for name, tensor in tensors.items():
            sources = self._sources.get(plain_name(name))
            if sources is not None:
                of_tensor.setdefault(id(tensor), sources)
        for name, tensor in tensors.items():
            if id(tensor) in of_tensor:
                self._sources.setdefault(plain_name(name), of_tensor[id(tensor)])

    def _check_names(self, extra: list[str]) -> None:
        missing = [name for name in self._shapes if name not in self._sources]
        if missing:
            raise CheckpointError(
                f"{self._reader.path}: {len(missing)} of {len(self._shapes)} tensors are missing: {listed(missing)}; "
                f"{_REMEDY}"
            )
        ignored = getattr(self._model, "_keys_to_ignore_on_load_unexpected", None) or []
        extra = [name for name in extra if not any(re.search(pattern, name) for pattern in ignored)]
        if extra:
            raise CheckpointError(
                f"{self._reader.path}: {len(extra)} tensors are not the model's: {listed(extra)}; {_REMEDY}"
            )

    def _check_tensors(self) -> None:
        """See that all will be of the model's shape, by doing on meta what is done to read them."""
        for plain, shape in self._shapes.items():
            sources = self._sources[plain]
            names = [name for names in sources.by_pattern.values() for name in names]
            quantised = [name for name in names if not self._reader.dtype(name).is_floating_point]
            if quantised and plain not in self._integers:
                raise CheckpointError(
                    f"{self._reader.path}: tensor {quantised[0]}: expected a floating-point dtype, found "
                    f"{self._reader.dtype(quantised[0])}; name a checkpoint that is not quantised"
                )
            try:
                found = str(list(self._read(plain, sources, self._on_meta).shape))
            except (RuntimeError, ValueError, KeyError, IndexError) as error:  # what transformers' conversions raise
                found = f"parts that cannot be joined ({error})"
            if found != str(list(shape)):
                whose = "" if names == [plain] else f" of {plain}"
                raise CheckpointError(
                    f"{self._reader.path}: tensor {listed(names)}: expected shape {list(shape)}{whose}, found {found}; "
                    f"{_REMEDY}"
                )

    def _on_meta(self, name: str) -> Tensor:
        return torch.empty(self._reader.shape(name), dtype=self._reader.dtype(name), device="meta")
