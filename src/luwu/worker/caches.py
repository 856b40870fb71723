"""Key-value caches that a model hands to its units: for generation, of no use with gradients."""

from __future__ import annotations

from typing import Any

from luwu.core.errors import ConfigError


def is_cache(value: Any) -> bool:
    """Return True for a cache of transformers: it is updated in place, and has a length."""
    kind = type(value)
    return callable(getattr(kind, "update", None)) and callable(getattr(kind, "get_seq_length", None))


def without_caches(leaves: list[Any], unit: str, *, recomputed: bool) -> list[Any]:
    """Take empty caches out of a unit's arguments: with gradients they would only be filled, once for every forward.

    Args:
        leaves: the arguments, containers taken apart.
        unit: its name.
        recomputed: the unit's forward runs again in backward, so it cannot have a cache with something in it either.

    Raises:
        ConfigError: there is such a cache.
    """
    return [_without_cache(leaf, unit, recomputed) if is_cache(leaf) else leaf for leaf in leaves]


def _without_cache(cache: Any, unit: str, recomputed: bool) -> Any:
    tokens = int(cache.get_seq_length())
    if tokens == 0:
        return None
    if recomputed:
        raise ConfigError(
            f"block {unit}: expected no past keys and values in a forward with gradients, found a cache of {tokens} "
            "tokens, which recomputing would fill twice; use torch.no_grad(), leave past_key_values out, or "
            "parallelize(checkpoint=False)"
        )
    return cache
