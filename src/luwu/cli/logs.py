"""The log of a command that runs for days: one line an event, on standard error."""

from __future__ import annotations

import logging
import sys
import time


def log_to_stderr(name: str = "luwu.server") -> logging.Logger:
    """Have everything that luwu logs go to standard error, with times in UTC; returns the command's logger."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger = logging.getLogger("luwu")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return logging.getLogger(name)
