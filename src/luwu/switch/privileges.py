"""What `luwu switch --xdp` gives up of root's rights before it listens to anybody."""

from __future__ import annotations

import encodings.idna  # looked up by name when an address is resolved, and then perhaps not readable any more
import logging
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

import luwu
from luwu import _native
from luwu.errors import ConfigError
from luwu.fabric.credentials import Credentials

log = logging.getLogger(__name__)


def give_up_root(user: str, credentials: Credentials) -> None:
    """Become a user without rights, and keep of root's what XDP needs when a run begins.

    What that user cannot read, but the switch has to, keeps root's user id, with a line in the log; all other rights go
    in any case. Before this process has other threads.

    Args:
        user: its name; a process that has no right to become another user stays the one it is.
        credentials: whose files are read again for every session.

    Raises:
        ConfigError: there is no such user. StorePermissionError: the kernel refuses.
    """
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise ConfigError(f"user: expected the name of one of this machine's users, found {user!r}") from None
    wanted: tuple[int, int] | None = (found.pw_uid, found.pw_gid)
    try:
        closed = _closed_to(found, credentials)
    except PermissionError:  # it has no right to become another user
        wanted = None
    else:
        if closed:
            log.warning("keeps user=root why=%s cannot read %s; let it, or name another --user", user, closed)
            wanted = None
    _native.keep_xdp_capabilities_alone(wanted)
    log.info("gave up root's rights user=%s", pwd.getpwuid(os.geteuid()).pw_name)


def _closed_to(user: pwd.struct_passwd, credentials: Credentials) -> str | None:
    """The first file that a switch reads while it serves and this user must not read."""
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
