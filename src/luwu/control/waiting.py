"""Log what the program waits for, and until when, when a wait takes long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from luwu.control.timeouts import PATIENCE_SECONDS


@contextmanager
def saying(log: logging.Logger, what: str, seconds: float | None) -> Iterator[None]:
    """Log a warning if the block lasts longer than `PATIENCE_SECONDS`; a timer's thread does it.

    Args:
        log: logger of the module that waits. Without a logging setup Python shows its warnings on standard error.
        what: the thing that the block waits for, such as ``a server at luwu://10.0.0.9:7070``.
        seconds: the longest time that the block waits; None: as long as it takes.
    """
    end = "" if seconds is None else f" {until(seconds)}"
    timer = threading.Timer(PATIENCE_SECONDS, log.warning, ("waiting for %s%s", what, end))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def until(seconds: float) -> str:
    """Describe the end of a wait that begins now, by this machine's clock: ``until 14:03:20 (60 s)``."""
    return f"until {datetime.now() + timedelta(seconds=seconds):%H:%M:%S} ({seconds:g} s)"
