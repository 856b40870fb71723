"""Sessions and endpoints over the native data plane."""

from luwu._native import copy_past_cache

__all__ = ["copy_past_cache"]
