"""Questions for the status of a run, to a server by its URL, or to the one of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from luwu.control.address import SCHEME, parse_urls
from luwu.control.credentials import Credentials
from luwu.control.frames import SOCKET_NAME
from luwu.control.status import ask_local_status, ask_status
from luwu.core.errors import ConfigError, LuwuError, ServerError
from luwu.launch.job import Job, ServerAccess
from luwu.launch.run_paths import RunPaths

if TYPE_CHECKING:
    from luwu.control import control_pb2 as pb


def ask_run(where: str, credentials: Credentials | None = None, *, look: bool = False) -> pb.StatusReply:
    """Return the status of a run. Of several servers the first is asked, which workers tell what they do.

    Args:
        where: luwu://HOST:PORT, several with commas, or a run folder of this machine.
        credentials: for a URL; a run folder has the paths of its own.
        look: ask for blocks and figures, too.

    Raises:
        ConfigError: no run is under way in the folder, or it cannot be read. ServerError: its server does not answer.
        AuthenticationError: the key is not the server's.
    """
    if where.startswith(SCHEME):
        return ask_status(parse_urls(where)[0].url, credentials or Credentials(), look=look)
    if server := server_of(Path(where)):
        try:
            return ask_status(parse_urls(server.url)[0].url, server.find(), look=look)
        except ServerError as error:
            raise ServerError(f"{where}: no run is under way there; its server was asked: {error}") from None
    return ask_local_status(Path(where), look=look)


def server_of(folder: Path) -> ServerAccess | None:
    """Return the server that a run's workers reach over the network; None: they do not, or the folder has no run.

    Raises:
        ConfigError: the folder, or the file of its job, cannot be read.
    """
    job = RunPaths(folder).job_path
    try:
        found = job.is_file()
    except OSError as error:
        raise ConfigError(
            f"{folder}: expected a run folder, found one that cannot be read: {error.strerror}; give this user "
            "permission to read it, or name the run's server by its URL"
        ) from None
    return Job.read(job).server if found else None


def has_no_server(folder: Path) -> bool:
    """Return True for a run folder without a server to ask; False also where its job.json cannot be read."""
    try:
        return server_of(folder) is None and not (folder / SOCKET_NAME).exists()
    except (LuwuError, OSError):
        return False
