"""A checkpoint as what a model starts from: tensor by tensor, under the model's names."""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor, nn

from luwu.errors import CheckpointError
from luwu.store.checkpoint import CheckpointReader, listed
from luwu.worker.conversions import Sources, find_sources, pretrained_inside
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
        self._sources, extra = find_sources(model, self._reader.names(), self._shapes)
        self._take_ties(tensors)
        self._own = {name for name in tensors if plain_name(name) in self._sources}
        self._check_names(extra)
        self._check_shapes()

    def has(self, name: str) -> bool:
        """Whether there are values for the model's tensor of this name."""
        return name in self._own

    def read(self, name: str) -> Tensor:
        """Return the values, in the checkpoint's dtype, on the CPU.

        Raises:
            CheckpointError: the file cannot be read any more, or what it has is of another shape.
        """
        plain = plain_name(name)
        sources = self._sources[plain]
        if sources.single is not None:
            return self._reader.read(sources.single)
        values = sources.read(self._reader.read, self._model)
        found = values.get(plain, values.get(sources.target))
        if found is None or tuple(found.shape) != self._shapes[plain]:
            raise CheckpointError(
                f"{self._reader.path}: tensors {_described(sources)}: expected parts of {plain} of shape "
                f"{list(self._shapes[plain])}, found {'none' if found is None else list(found.shape)}; {_REMEDY}"
            )
        return found

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

    def _check_shapes(self) -> None:
        for plain, shape in self._shapes.items():
            name = self._sources[plain].single
            if name is not None and self._reader.shape(name) != shape:
                raise CheckpointError(
                    f"{self._reader.path}: tensor {name}: expected shape {list(shape)}, found "
                    f"{list(self._reader.shape(name))}; {_REMEDY}"
                )


def _described(sources: Sources) -> str:
    return listed([name for names in sources.by_pattern.values() for name in names])
