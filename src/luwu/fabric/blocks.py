"""A manifest's blocks for the native core."""

from __future__ import annotations

from luwu import _native
from luwu.store.manifest import ROOT_NAME, Manifest


def block_specs(manifest: Manifest) -> list[_native.BlockSpec]:
    """Return the manifest's blocks for the native core. The root block is held through the whole step."""
    return [
        _native.BlockSpec(
            block.name,
            block.elements,
            block.trainable,
            block.name.startswith(ROOT_NAME),
            manifest.dtype_of(block),
        )
        for block in manifest.blocks
    ]
