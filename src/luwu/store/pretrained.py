"""Checkpoints of Hugging Face's transformers, read in parts under the model's names."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from luwu.core.errors import CheckpointError
from luwu.store.checkpoint import CheckpointReader, listed

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PretrainedReader:
    """A checkpoint under the model's names: renamed, split and joined as ``from_pretrained`` does it.

    Most tensors are read in parts. One that has to be joined from several, such as the experts of a layer, is made
    whole in memory when a part of it is asked for, and kept until another is.

    Args:
        reader: of the checkpoint.
        model: on meta.
        known: names of the model's tensors; None: those of its state_dict, which differ where peft has wrapped layers.

    Raises:
        CheckpointError: two tensors have one name in the model, or some cannot be joined.
    """

    def __init__(self, reader: CheckpointReader, model: PreTrainedModel, known: Iterable[str] | None = None) -> None:
        self._reader = reader
        self._model = model
        self._known = dict.fromkeys(model.state_dict() if known is None else known, True)
        self._direct: dict[str, str] = {}
        self._joined: dict[str, _Conversion] = {}
        self._places: dict[str, Tensor] = {}  # joined tensors, on meta
        self._kept: tuple[_Conversion, dict[str, Tensor]] | None = None
        for conversion in self._sort_names():
            try:
                places = conversion.convert(self._on_meta)
            except (RuntimeError, ValueError, KeyError, IndexError) as error:  # errors of transformers' conversions
                raise CheckpointError(
                    f"{self.path}: tensors {listed([source for _, source in conversion.sources])}: expected all parts "
                    f"of {conversion.name}, found what cannot be joined ({error}); download the checkpoint again"
                ) from error
            for name, tensor in places.items():
                self._joined[name], self._places[name] = conversion, tensor

    @property
    def path(self) -> Path:
        """Path of the checkpoint."""
        return self._reader.path

    @property
    def files(self) -> tuple[Path, ...]:
        """Path of the checkpoint."""
        return self._reader.files

    def names(self) -> tuple[str, ...]:
        """Return the model's names of the tensors; a tensor unknown to the model keeps its name in the checkpoint."""
        return (*self._direct, *self._joined)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        if name in self._places:
            return tuple(self._places[name].shape)
        return self._reader.shape(self._direct.get(name, name))

    def dtype(self, name: str) -> torch.dtype:
        """A tensor's dtype."""
        return self._places[name].dtype if name in self._places else self._reader.dtype(self._direct.get(name, name))

    def read_range(self, name: str, first: int, count: int) -> Tensor:
        """Elements of a tensor seen as flat; see `CheckpointReader.read_range`."""
        conversion = self._joined.get(name)
        if conversion is None:
            return self._reader.read_range(self._direct.get(name, name), first, count)
        if self._kept is None or self._kept[0] is not conversion:
            self._kept = None  # its memory first
            self._kept = (conversion, conversion.convert(self._reader.read))
        return self._kept[1][name].reshape(-1)[first : first + count]

    def _on_meta(self, name: str) -> Tensor:
        return torch.empty(self._reader.shape(name), dtype=self._reader.dtype(name), device="meta")

    def _sort_names(self) -> list[_Conversion]:
        """Give every tensor of the checkpoint its name in the model, or its part in a conversion."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            dot_natural_key,
            rename_source_key,
        )

        transforms = get_model_conversion_mapping(self._model)
        renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        converters = [each for each in transforms if isinstance(each, WeightConverter)]
        by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        known = self._known
        prefix = self._model.base_model_prefix
        conversions: dict[str, _Conversion] = {}
        for source in sorted(self._reader.names(), key=dot_natural_key):
            name, pattern = rename_source_key(source, renamings, converters, prefix, known)
            if name not in known and source in known:
                name, pattern = source, None
            if name not in known:
                name, pattern = source, None
            if pattern is None:
                if name in self._direct:
                    raise CheckpointError(
                        f"{self.path}: tensors {self._direct[name]} and {source} are both {name} of the model; "
                        "remove the one that does not count"
                    )
                self._direct[name] = source
            else:
                conversion = conversions.setdefault(name, _Conversion(name, by_pattern[pattern], self._model))
                conversion.sources.append((pattern, source))
        return list(conversions.values())


class _Conversion:
    """A converter of transformers in use: tensors of the checkpoint that make tensors of the model."""

    def __init__(self, name: str, converter: Any, model: nn.Module) -> None:
        self.name = name
        self._converter = converter
        self._model = model
        self.sources: list[tuple[str, str]] = []

    def convert(self, read: Any) -> dict[str, Tensor]:
        """Return the converted tensors by the model's names."""
        converter = deepcopy(self._converter)
        for pattern, source in self.sources:
            converter.add_tensor(self.name, source, pattern, lambda source=source: read(source))
        found = converter.convert(self.name, model=self._model, config=self._model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in found.items()}
