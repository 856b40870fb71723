"""Calls of `--on-alert`: a command that is run, or a URL that is posted to, for each alert that is raised or cleared.

One runs at a time, in a thread of its own, and within a time limit. Alerts that come meanwhile wait, up to a number. A
failure never reaches the run.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator

from luwu.core.errors import ConfigError
from luwu.core.words import printable
from luwu.launch.last_words import LastWords
from luwu.launch.webhook import check_url, is_url, post

ENVIRONMENT = "LUWU_ALERT_"
"""Start of the names of environment variables that a command gets."""

LIMIT_SECONDS = 30.0
"""The longest time of a command or a request."""

CLOSE_SECONDS = 10.0
"""The longest time that the end of a run waits for those that are left."""

MOST_WAITING = 64
"""Alerts that wait for their turn; a further one is not told."""

MOST_BYTES = 100_000
"""Longest value of an environment variable of a command; the kernel takes 128 KiB with the name."""

PRIVATE = "run.on_alert"
"""Name of the setting, which stays in the run folder, in files of this user alone: it may have a secret."""

PRIVATE_KEY = PRIVATE.rpartition(".")[2]
"""Its name in its table."""

Words = Mapping[str, Any]


def without_private(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name such as ``run.steps``, without the one that others must not see."""
    return {name: value for name, value in values.items() if name != PRIVATE}


def without_private_key(value: Any) -> Any:
    """Return tables of a config.toml, at any depth, without the setting that others must not see."""
    if isinstance(value, list):
        return [without_private_key(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: without_private_key(each) for name, each in value.items() if name != PRIVATE_KEY}


def check_on_alert(target: str) -> str:
    """Return a target, a command or a URL; raises ConfigError for one that is neither. Empty: alerts are not told."""
    if is_url(target):
        check_url(target)
        return target
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise ConfigError(f"expected a command or a URL, found text that has no words: {error}; correct it") from None
    if words and "://" in words[0]:  # not quoted, as the text above: it may have a secret
        raise ConfigError("expected a command, or a URL that begins with http:// or https://, found another")
    if target and not words:
        raise ConfigError(f"expected a command, or a URL such as https://HOST/PATH, found {target!r}; correct it")
    return target


OnAlert = Annotated[str, AfterValidator(check_on_alert)]
"""Text that `check_on_alert` takes."""


def check_program(target: str) -> None:
    """Raise ConfigError for a command whose program is not there."""
    if target and not is_url(target) and shutil.which(program := shlex.split(target)[0]) is None:
        raise ConfigError(f"run.on_alert: expected a program that can be run, found {program!r}; check its path")


class OnAlertCalls:
    """Tells a command or a URL of alerts.

    Args:
        target: as `OnAlert`; empty: nobody is told.
        limit_seconds: the longest time of each.

    Attributes:
        failure: sentence about the first failure; empty: there was none.
    """

    def __init__(self, target: str, limit_seconds: float = LIMIT_SECONDS) -> None:
        self.failure = ""
        self._target = target
        self._limit_seconds = limit_seconds
        self._waiting: queue.Queue[Words | None] = queue.Queue(MOST_WAITING)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="luwu-on-alert", daemon=True)
        if target:
            self._thread.start()

    def tell(self, words: Words) -> None:
        """Let an alert be told; returns at once."""
        if not self._target:
            return
        try:
            self._waiting.put_nowait(words)
        except queue.Full:
            self._note_failure(f"{MOST_WAITING} alerts wait for it")

    def close(self) -> None:
        """Wait a while for what is left, and end what runs still."""
        if not self._target:
            return
        deadline = time.monotonic() + CLOSE_SECONDS
        with suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_SECONDS)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._is_over = True
        if self._thread.is_alive():
            self._note_failure(f"it had not ended {CLOSE_SECONDS:g} s after the run")
            _kill(self._process)

    def _run(self) -> None:
        call: Callable[[Words], None] = self._post if is_url(self._target) else self._call
        while (words := self._waiting.get()) is not None and not self._is_over:
            try:
                call(words)
            except Exception as error:
                self._note_failure(str(error) or type(error).__name__)

    def _post(self, words: Words) -> None:
        post(self._target, words, self._limit_seconds)

    def _call(self, words: Words) -> None:
        """Run the command, without a shell; raises an error if it fails, or takes too long."""
        names = {f"{ENVIRONMENT}{name.upper()}".encode(): _clean(str(value)) for name, value in words.items()}
        said = LastWords()
        try:
            process = self._process = subprocess.Popen(
                shlex.split(self._target), env={**os.environb, **names}, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said.writes_to,
            )  # fmt: skip
        finally:
            said.started()
        try:
            process.communicate(json.dumps(words).encode(), timeout=self._limit_seconds)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            raise TimeoutError(f"it has not ended within {self._limit_seconds:g} s, and was killed") from None
        if process.returncode:
            last = said.line()
            raise ChildProcessError(f"exit status {process.returncode}{f': {last}' if last else ''}")

    def _note_failure(self, why: str) -> None:
        """Note a failure, unless there was one; it says a host or a program alone: the rest may have a secret."""
        who = urlsplit(self._target).hostname if is_url(self._target) else shlex.split(self._target)[0]
        self.failure = self.failure or printable(f"on-alert: {who} has failed: {why}; alerts.jsonl has all alerts")


def _clean(text: str) -> bytes:
    """Return text as the environment takes it: no NUL, no lone surrogate, and at most `MOST_BYTES`."""
    text = text.replace("\0", "\ufffd")
    try:
        value = os.fsencode(text)  # a path may have bytes that are no UTF-8
    except UnicodeEncodeError:
        value = text.encode("utf-8", "replace")
    end = min(len(value), MOST_BYTES)
    while end < len(value) and value[end] & 0xC0 == 0x80:  # within a letter
        end -= 1
    return value[:end]


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    """End a command with all that it has started in its session."""
    if process is not None and process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
