"""The end of a ``with`` block whose object may fail to close; sessions and servers share it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from luwu.core.errors import LuwuError

log = logging.getLogger(__name__)


def close_after(error: BaseException | None, close: Callable[[], None]) -> None:
    """Call `close` at the end of a ``with`` block.

    Args:
        error: the exception that ends the block. It stays the block's exception; another one of `close` is logged.
        close: closes the object.

    Raises:
        LuwuError: `close` raised it, and no other exception ends the block.
    """
    try:
        close()
    except LuwuError as found:
        if error is None:
            raise
        if str(found) != str(error):
            log.error("while an exception ended the block, closing failed: %s", found)
