"""Asks a server to give its standby up, and a standby to take over."""

from __future__ import annotations

from luwu.control import control_pb2 as pb
from luwu.control.credentials import RELEASE_REQUEST, TAKE_OVER_REQUEST, Credentials
from luwu.control.questions import ask_proved
from luwu.control.timeouts import TIMEOUTS, Timeouts


def ask_to_take_over(url: str, credentials: Credentials, timeouts: Timeouts = TIMEOUTS, *, anyway: bool = False) -> int:
    """Have the standby at ``luwu://HOST:PORT`` take over; returns the step at which it does.

    Raises:
        ConfigError: it is no standby, may lack commits, or has its server connected, the last not with ``anyway``.
        Others: see `luwu.control.questions.ask_proved`.
    """
    reply = ask_proved(url, credentials, timeouts, "TakeOver", pb.TakeOverRequest(anyway=anyway), TAKE_OVER_REQUEST)
    return int(reply.step)


def ask_to_release(url: str, credentials: Credentials, timeouts: Timeouts = TIMEOUTS, *, anyway: bool = False) -> bool:
    """Have the server at ``luwu://HOST:PORT`` give its standby up; True: the standby knows.

    Raises:
        ConfigError: it has none. ServerError: the standby cannot be told; not with ``anyway``. Others: see
        `luwu.control.questions.ask_proved`.
    """
    reply = ask_proved(url, credentials, timeouts, "Release", pb.ReleaseRequest(anyway=anyway), RELEASE_REQUEST)
    return bool(reply.told)
