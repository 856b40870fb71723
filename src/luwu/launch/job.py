"""The launcher's messages to its workers: a JSON file, and the words that both sides use."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from luwu.control.credentials import Credentials, TlsFiles, find_credentials
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.core.errors import ConfigError, LuwuError
from luwu.core.exits import Exit
from luwu.core.quantities import check_name
from luwu.core.room import NO_WAIT, Room
from luwu.launch.settings import Settings
from luwu.store.run_record import Claim

_WRITES_IT = "start luwu train again, which writes the file"

ERROR_MARK = "luwu error "
"""Mark of the log's line with the typed error that ended a worker; JSON follows: {"type": ..., "message": ...}."""


def write_error(error: LuwuError) -> None:
    """Write a typed error where the launcher finds it, to the log that standard error goes to."""
    words = json.dumps({"type": type(error).__name__, "message": str(error)})
    with suppress(OSError):  # the log may be on a full disk
        os.write(2, f"{ERROR_MARK}{words}\n".encode())


class CredentialFiles(BaseModel):
    """Files of credentials; secrets stay in them, or in the environment."""

    key_file: str | None = None
    tls: tuple[str, str, str] | None = None
    """Paths of certificate, key and authority."""

    def find(self) -> Credentials:
        """Return the credentials of these files, or of the environment; raises ConfigError."""
        return find_credentials(key_file=self.key_file, tls=TlsFiles(*map(Path, self.tls)) if self.tls else None)


class ServerAccess(CredentialFiles):
    """A server on the network and the files to join it with."""

    url: str
    standby: str = ""
    """URL of the server's standby, which may have taken over; empty: it has none that the run knows of."""
    plain_data: bool | None = None
    """Argument of `luwu.connect`."""
    connect_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Time in which the server must answer; None: as `Timeouts` have it."""

    def timeouts(self) -> Timeouts:
        """Return the timeouts of `luwu.connect`. Another program at the server's port is borne as long as silence."""
        if self.connect_seconds is None:
            return TIMEOUTS
        seconds = self.connect_seconds
        return TIMEOUTS.model_copy(update={"connect_seconds": seconds, "refused_seconds": seconds})


class Job(BaseModel):
    """A run as one worker needs to know it. Times and paths are the launcher's."""

    settings: Settings
    folder: str
    socket_path: str | None
    """Path of the socket of the launcher's own server; None: the server is elsewhere."""
    launcher_pid: int = Field(ge=1, lt=2**31)
    server: ServerAccess | None = None
    """Server on the network; None: the launcher has its own."""
    validated_step: int = 0
    """Last step whose validation loss the run folder has; 0: none."""
    joined: bool = False
    """The launcher that has the run, and writes its folder, is on another machine."""
    claim: str | None = None
    """Run's claim on that server's store, a `luwu.store.run_record.Claim` as JSON."""
    ended: bool = False
    """The launcher has ended, and with it the run on this machine."""

    @property
    def run_id(self) -> str:
        """Return the run's id; empty until it claims a server's store. Raises ConfigError for a damaged claim."""
        return "" if self.claim is None else Claim.from_json(self.claim).run.id

    @property
    def stop_path(self) -> Path:
        """Return the path of the file whose presence says that the attempt just finished was the last."""
        return Path(self.folder, "stop")

    def write(self, path: Path, room: Room = NO_WAIT) -> None:
        """Save the job for the workers."""
        room.write_file(path, self.model_dump_json(indent=1) + "\n", self.settings.file_mode)

    @staticmethod
    def read(path: Path) -> Job:
        """Return the job that a launcher saved.

        Raises:
            ConfigError: the file is damaged or missing; names the field.
        """
        try:
            job = Job.model_validate_json(path.read_bytes())
            for name in (job.folder, job.socket_path or "", *job.settings.run.stores):
                check_name(Path(name))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}; {_WRITES_IT}") from error
        except ValidationError as error:
            raise ConfigError(f"{path}: {problem_in(error, 'the file')}; {_WRITES_IT}") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}; {_WRITES_IT}") from None
        return job


def mark_ended(path: Path) -> None:
    """Note in a job that this process has saved that its run has ended; a folder that takes no file keeps it as it is.

    The file keeps its time: that of the run's last start.
    """
    with suppress(LuwuError, OSError):
        job = Job.read(path)
        if job.launcher_pid == os.getpid():  # else another launcher has the folder, which refused this one
            started = path.stat().st_mtime_ns
            job.model_copy(update={"ended": True}).write(path)
            os.utime(path, ns=(started, started))


def problem_in(error: ValidationError, whole: str) -> str:
    """Return the first wrong field and what is wrong with it; ``whole`` names all of what was read."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"


def read_job(path: Path) -> Job:
    """Return the job of this process; where its file is damaged, leave the error for the launcher and end."""
    try:
        return Job.read(path)
    except ConfigError as error:
        write_error(error)
        raise SystemExit(Exit.FAILED) from None
