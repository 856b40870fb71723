"""Blocks of the GPT, as `luwu.worker.layout` lays it out; that module loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from luwu.core.manifest import DEFAULT_CHUNK_ELEMENTS, LEAST_SHARE, ROOT_NAME, BlockManifest, Manifest
from luwu.models.settings import ModelSettings
from luwu.models.shapes import padded


def gpt_manifest(
    model: ModelSettings, vocabulary: int, *, dtype: str, block_dtypes: Mapping[str, str], optimizer: str
) -> Manifest:
    """Return the manifest of a GPT, without a list of parameters; its blocks are in no particular order.

    Args:
        model: its shape.
        vocabulary: number of its tokens.
        dtype: dtype of its parameters.
        block_dtypes: other dtypes, by pattern of block names or ``<root>``: the first pattern that matches counts.
        optimizer: its kind in manifests, such as adamw.
    """
    hidden = model.hidden
    layer = [*[hidden] * 4, 3 * hidden**2, hidden**2, *[4 * hidden**2] * 2]
    layers = dict.fromkeys((f"blocks.{number}" for number in range(model.layers)), layer)
    modules = layers | {"tokens": [vocabulary * hidden], "positions": [model.seq * hidden], "norm": [hidden] * 2}
    dtypes: dict[str, str] = {}
    for pattern, chosen in block_dtypes.items():
        for name in [ROOT_NAME] if pattern == ROOT_NAME else modules:
            if name == pattern or fnmatchcase(name, pattern):
                dtypes.setdefault(name, chosen)
    of_root = dtypes.get(ROOT_NAME, dtype)
    largest = max(sum(modules[name]) for name in modules if name in layers or name in dtypes)
    blocks, root = [], []
    for name, parameters in modules.items():
        if name in layers or name in dtypes:
            own = dtypes.get(name, dtype)
        elif sum(parameters) >= largest / LEAST_SHARE:
            own = of_root
        else:
            root += parameters
            continue
        blocks.append(BlockManifest(name, True, (), padded(parameters), dtype=own))
    if root:
        blocks.append(BlockManifest(ROOT_NAME, True, (), padded(root), dtype=of_root))
    return Manifest(dtype, DEFAULT_CHUNK_ELEMENTS, tuple(blocks), optimizer)
