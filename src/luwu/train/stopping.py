"""Agreement of all workers on the attempt after which a run stops, although only rank 0 is asked to stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from luwu.core.files import replace_text
from luwu.core.room import is_full
from luwu.launch.job import Job
from luwu.session.session import Session

if TYPE_CHECKING:
    from luwu.session.remote_endpoint import RemoteEndpoint  # brings gRPC


class StopAgreement(Protocol):
    """Rank 0 proposes an attempt before it votes on it. No attempt ends without that vote, so then all know of it."""

    def propose(self, attempt: int) -> None:
        """Ask that this attempt be the last; its number is the run's."""

    def is_last(self, attempt: int) -> bool:
        """Return True if an attempt that has ended was the last."""


class StopFile:
    """A file, for workers on one machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def propose(self, attempt: int) -> None:
        """Write the attempt down. If the disk has no room for that, a later attempt will be the last."""
        try:
            replace_text(self._path, str(attempt))
        except OSError as error:
            if not is_full(error):
                raise

    def is_last(self, attempt: int) -> bool:
        """Return True if the file names this attempt."""
        return self._path.exists() and int(self._path.read_text()) == attempt


class StopByServer:
    """The server, which tells the others with the end of the attempt, for workers on any machine."""

    def __init__(self, endpoint: RemoteEndpoint) -> None:
        self._endpoint = endpoint

    def propose(self, attempt: int) -> None:
        """Have the vote on the attempt say so."""
        self._endpoint.ask_to_stop(attempt)

    def is_last(self, attempt: int) -> bool:
        """Return True if the server has named this attempt."""
        return self._endpoint.last_attempt == attempt


def agreement_of(job: Job, session: Session) -> StopAgreement:
    """Return what the workers of a job agree with."""
    if job.server is None:
        return StopFile(job.stop_path)
    return StopByServer(cast("RemoteEndpoint", session.endpoint))
