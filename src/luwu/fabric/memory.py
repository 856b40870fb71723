"""The native core's copies, for workers' memory."""

from luwu._native import copy_past_cache

__all__ = ["copy_past_cache"]
