"""Questions for the status of a run, to a server by its URL, or to the one of a run folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from luwu.control.address import SCHEME, parse_urls
from luwu.control.credentials import Credentials
from luwu.control.frames import SOCKET_NAME
from luwu.control.status import ask_local_status, ask_status
from luwu.core.errors import ConfigError, NotUnderWayError, ServerError
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
        NotUnderWayError: no run is under way in the folder. ConfigError: it is not there, or cannot be read.
        ServerError: its server does not answer. AuthenticationError: the key is not the server's.
    """
    if where.startswith(SCHEME):
        return ask_status(parse_urls(where)[0].url, credentials or Credentials(), look=look)
    folder = Path(where)
    job = _job_elsewhere(folder)
    return ask_local_status(folder, look=look) if job is None else _ask_server(folder, job, look)


def server_of(folder: Path) -> ServerAccess | None:
    """Return the server on the network of the run that is under way in a folder; None: it is the launcher's own.

    Raises:
        What `ask_run` raises.
    """
    job = _job_elsewhere(folder)
    if job is None:
        return None
    _ask_server(folder, job, look=False)
    return job.server


def _job_elsewhere(folder: Path) -> Job | None:
    """Return the job of a run whose workers reach their server over the network; None: it is the launcher's own."""
    paths = RunPaths(folder)
    try:
        job = Job.read(paths.job_path) if paths.job_path.is_file() else None
        if job is not None and job.server is not None and not job.ended:
            return job
        if (folder / SOCKET_NAME).exists():
            return None
        known = job is not None or paths.metrics_path.exists() or paths.config_path.exists()
        there = folder.is_dir()
    except OSError as error:
        raise ConfigError(
            f"{folder}: expected a run folder, found one that cannot be read: {error.strerror}; give this user "
            "permission to read it, or name the run's server by its URL"
        ) from None
    if known:
        raise _ended(folder, "one that has ended")
    advice = "check the name, or give the URL of the run's server, luwu://HOST:PORT"
    if there:
        raise NotUnderWayError(f"{folder}: expected a run folder, found a folder without a run; {advice}")
    raise ConfigError(f"{folder}: expected a run folder, found no such folder; {advice}")


def _ended(folder: Path, found: str) -> NotUnderWayError:
    name = shlex.quote(str(folder))
    return NotUnderWayError(
        f"{folder}: expected a run folder with a run under way, found {found}; `luwu watch {name}` shows how it went, "
        f"and `luwu explain {name}` what bound its steps"
    )


def _ask_server(folder: Path, job: Job, look: bool) -> pb.StatusReply:
    assert job.server is not None
    try:
        reply = ask_status(parse_urls(job.server.url)[0].url, job.server.find(), look=look)
    except ServerError as error:
        raise ServerError(f"{folder}: no run is under way there; its server was asked: {error}") from None
    if reply.run not in ("", job.run_id):
        raise _ended(folder, f"that its server, {job.server.url}, has another run now")
    return reply
