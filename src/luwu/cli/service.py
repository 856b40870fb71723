"""Parts that all long-running commands share: credentials, and a log on standard error with one line for each event."""

from __future__ import annotations

import logging
import signal
import sys
import time

from luwu.control.credentials import Credentials, CredentialSettings, find_credentials, tls_files
from luwu.launch.interrupts import SIGNALS


def prepare(wanted: CredentialSettings, name: str) -> tuple[Credentials, logging.Logger]:
    """Find the credentials, start the log, and block the signals that end the command, before it makes threads.

    Threads inherit the mask, so the signal comes to the one that waits for it.

    Raises:
        ConfigError: the key or the certificates cannot be used.
    """
    credentials = find_credentials(
        key_file=wanted.key_file, tls=tls_files(wanted.tls_cert, wanted.tls_key, wanted.tls_ca)
    )
    log = log_to_stderr(name)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    return credentials, log


def log_to_stderr(name: str) -> logging.Logger:
    """Have everything that luwu logs go to standard error, with times in UTC; returns the command's logger."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger = logging.getLogger("luwu")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return logging.getLogger(name)
