"""Gives up the rights of root that `luwu switch --xdp` does not need, before it listens."""

from __future__ import annotations

import encodings.idna  # resolving an address imports it, perhaps when this process cannot read it any more
import logging
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

import luwu
from luwu.control.credentials import Credentials
from luwu.core import native
from luwu.core.errors import ConfigError

log = logging.getLogger(__name__)


def give_up_root(user: str, credentials: Credentials) -> None:
    """Become a user without rights, and keep only the capabilities that XDP needs when a run begins.

    If that user cannot read a file that the switch needs, the process keeps root's user id and logs that; it gives up
    all other rights in any case. Call it before this process has other threads.

    Args:
        user: the user's name; a process that has no right to become another user keeps its own.
        credentials: credentials whose files are read again for every session.

    Raises:
        ConfigError: the machine has no such user. StorePermissionError: the kernel refuses.
    """
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise ConfigError(f"user: expected the name of one of this machine's users, found {user!r}") from None
    wanted: tuple[int, int] | None = (found.pw_uid, found.pw_gid)
    try:
        closed = _closed_to(found, credentials)
    except PermissionError:  # this process has no right to become another user
        wanted = None
    else:
        if closed:
            log.warning("keeps user=root why=%s cannot read %s; let it, or name another --user", user, closed)
            wanted = None
    native.keep_xdp_capabilities_alone(wanted)
    log.info("gave up root's rights user=%s", pwd.getpwuid(os.geteuid()).pw_name)


def _closed_to(user: pwd.struct_passwd, credentials: Credentials) -> str | None:
    """Return the first file that a switch reads while it serves and that this user may not read."""
    needed = [luwu.__file__, grpc.__file__, encodings.idna.__file__]
    needed += credentials.tls.paths if credentials.tls is not None else ()
    with _seen_as(user):
        return next((path for path in needed if path and not os.access(path, os.R_OK, effective_ids=True)), None)


@contextmanager
def _seen_as(user: pwd.struct_passwd) -> Iterator[None]:
    groups, own_group, own_user = os.getgroups(), os.getegid(), os.geteuid()
    os.setgroups([])
    try:
        os.setegid(user.pw_gid)
        os.seteuid(user.pw_uid)
        yield
    finally:
        os.seteuid(own_user)
        os.setegid(own_group)
        os.setgroups(groups)
