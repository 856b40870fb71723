"""Finds out which of two servers serves: a run's own, or the standby that has taken over from it."""

from __future__ import annotations

import time
from collections.abc import Callable

from luwu.control.status import ask_status
from luwu.control.timeouts import TIMEOUTS
from luwu.core.errors import ServerError
from luwu.launch.job import ServerAccess

PAUSE_SECONDS = 0.5


def serving_one(access: ServerAccess, goes_on: Callable[[], bool], say: Callable[[str], None]) -> ServerAccess:
    """Return the access whose URL is the server's that serves now, and whose standby is the other.

    A server serves unless it follows another one, or was replaced by it. Where both serve, one of them was replaced and
    may not know yet: the one of the later generation counts. Where nobody serves within ``connect_seconds``, the access
    is returned as it is, and whoever connects says so.

    Args:
        access: the two; without a standby it is returned at once.
        goes_on: tells whether to wait for a server to answer.
        say: told once that the standby serves.

    Raises:
        AuthenticationError, ConfigError: see `luwu.control.status.ask_status`.
    """
    if not access.standby:
        return access
    deadline = time.monotonic() + (access.connect_seconds or TIMEOUTS.connect_seconds)
    while goes_on():
        found = {
            url: generation for url in (access.url, access.standby) if (generation := _generation(access, url)) >= 0
        }
        if found:
            url = max(found, key=lambda each: (found[each], each == access.url))
            if url == access.url:
                return access
            say(f"the standby {url} serves now, in the place of {access.url}")
            return access.model_copy(update={"url": url, "standby": access.url})
        if time.monotonic() >= deadline:
            break
        time.sleep(PAUSE_SECONDS)
    return access


def _generation(access: ServerAccess, url: str) -> int:
    """Return the generation of a server that serves; -1: it does not answer, or follows another."""
    try:
        standby = ask_status(url, access.find()).standby
    except ServerError:
        return -1
    return -1 if standby.follows or standby.replaced else int(standby.generation)
