"""Credentials of participants: a job key that both sides prove to know without sending it, mutual TLS, or both.

The proofs are HMAC-SHA256 under the key over both sides' nonces and what is asked for. Each side's begins with another
label, so neither can be replayed as the other's. Without TLS nothing is encrypted and a session's token can be read on
the wire: use the key alone only in a network that you trust.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from luwu.core.errors import ConfigError
from luwu.core.quantities import AbsolutePath
from luwu.core.settings import Group

if TYPE_CHECKING:
    from luwu.control import control_pb2 as pb

NONCE_BYTES = 32
SHORTEST_KEY_BYTES = 16
_SERVER_LABEL = b"luwu server\0"
_PARTICIPANT_LABEL = b"luwu participant\0"

ENVIRONMENT_KEY = "LUWU_JOB_KEY"
ENVIRONMENT_KEY_FILE = "LUWU_JOB_KEY_FILE"
ENVIRONMENT_PLAIN_DATA = "LUWU_PLAIN_DATA"
ENVIRONMENT_TLS = ("LUWU_TLS_CERT", "LUWU_TLS_KEY", "LUWU_TLS_CA")


class CredentialSettings(Group):
    """Files of a participant's credentials."""

    key_file: AbsolutePath | None = None
    """file with the job key; LUWU_JOB_KEY or LUWU_JOB_KEY_FILE of the environment do the same"""
    tls_cert: AbsolutePath | None = None
    """own certificate, PEM; a server's names the host that workers connect to; LUWU_TLS_CERT does the same"""
    tls_key: AbsolutePath | None = None
    """its private key, PEM; LUWU_TLS_KEY does the same"""
    tls_ca: AbsolutePath | None = None
    """certificate of the authority that signed both sides' certificates, PEM; LUWU_TLS_CA does the same"""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files for mutual TLS: this side's certificate and its private key, and the authority that signed both sides'.

    A server's certificate must name the host that workers connect to (subjectAltName).
    """

    certificate: Path
    key: Path
    authority: Path

    @property
    def paths(self) -> tuple[str, str, str]:
        """The paths of certificate, key and authority."""
        return str(self.certificate), str(self.key), str(self.authority)

    def read(self) -> tuple[bytes, bytes, bytes]:
        """The contents of certificate, key and authority; raises ConfigError."""
        return _read(self.certificate), _read(self.key), _read(self.authority)


@dataclass(frozen=True)
class Credentials:
    """The key and certificates that this side proves itself with. ``repr`` does not show the key.

    ``plain_data``: this side agrees that parameters and gradients travel unencrypted although it has certificates.
    """

    key: bytes | None = None
    tls: TlsFiles | None = None
    plain_data: bool = False

    def __repr__(self) -> str:
        return f"Credentials(key={'...' if self.key else None}, tls={self.tls}, plain_data={self.plain_data})"

    def prove_participant(self, participant_nonce: bytes, server_nonce: bytes, request: str) -> bytes:
        """Return the proof that goes with a join; ``request`` is the join's content. Empty without a key."""
        return self._prove(_PARTICIPANT_LABEL, participant_nonce, server_nonce, request)

    def prove_server(self, participant_nonce: bytes, server_nonce: bytes, request: str) -> bytes:
        """Return the proof that goes with the answer to a join. Empty without a key."""
        return self._prove(_SERVER_LABEL, participant_nonce, server_nonce, request)

    def _prove(self, label: bytes, participant_nonce: bytes, server_nonce: bytes, request: str) -> bytes:
        if self.key is None:
            return b""
        return hmac.digest(self.key, label + participant_nonce + server_nonce + request.encode(), hashlib.sha256)


STATUS_REQUEST = "status"
"""Text that the proof of a question for the status covers."""


TRACE_REQUEST = "trace"
"""Text that the proof of a call for a trace covers."""


RELEASE_REQUEST = "release of its standby"
"""Text that the proof of a call for the release of a standby covers."""


TAKE_OVER_REQUEST = "take-over"
"""Text that the proof of a call for a take-over covers."""


def follow_request(url: str, advertise: str, port: int, token: bytes) -> str:
    """Return the text that the proof of a standby covers: nobody may have the server send its store elsewhere."""
    return f"standby {url} at {advertise!r} {port} with {hashlib.sha256(token).hexdigest()}"


def worker_request(rank: int, workers: int) -> str:
    """Return the text that a worker's proof covers."""
    return f"worker {rank} of {workers}"


def switch_request(request: pb.JoinSwitchRequest) -> str:
    """Return the text that a switch's proof covers."""
    return (
        f"switch {request.name} at {request.address} {request.port} for {request.fan_in} below {request.parent!r} "
        f"with {request.payload_bytes}"
    )


def launcher_request(host: str) -> str:
    """Return the text that the proof of a launcher on another machine covers."""
    return f"launcher at {host}"


def make_nonce() -> bytes:
    """Bytes that nobody can guess."""
    return secrets.token_bytes(NONCE_BYTES)


def find_credentials(
    key: str | bytes | None = None,
    key_file: str | Path | None = None,
    tls: TlsFiles | None = None,
    plain_data: bool | None = None,
) -> Credentials:
    """Return the credentials that were given, else those that the environment names.

    The environment has LUWU_JOB_KEY or LUWU_JOB_KEY_FILE; LUWU_TLS_CERT, LUWU_TLS_KEY and LUWU_TLS_CA; and
    LUWU_PLAIN_DATA=1.

    Raises:
        ConfigError: both a key and a file, a file that cannot be read, a key below 16 bytes, or TLS files in part.
    """
    if key is None and key_file is None:
        key, key_file = (os.environ.get(name) or None for name in (ENVIRONMENT_KEY, ENVIRONMENT_KEY_FILE))
    if key is not None and key_file is not None:
        raise ConfigError(f"job key: expected a key or a file, found both; see {ENVIRONMENT_KEY} too")
    if key_file is not None:
        key = _read(Path(key_file)).strip()
    if isinstance(key, str):
        key = key.strip().encode()
    if key is not None and len(key) < SHORTEST_KEY_BYTES:
        raise ConfigError(
            f"job key: expected at least {SHORTEST_KEY_BYTES} bytes, found {len(key)}; "
            "make one with: openssl rand -hex 32 > job.key"
        )
    if plain_data is None:
        plain_data = os.environ.get(ENVIRONMENT_PLAIN_DATA) == "1"
    return Credentials(key, tls or tls_files(*(os.environ.get(name) for name in ENVIRONMENT_TLS)), plain_data)


def tls_files(certificate: str | Path | None, key: str | Path | None, authority: str | Path | None) -> TlsFiles | None:
    """Return the three files of mutual TLS, None if none is named; raises ConfigError if some of them are missing."""
    given = [Path(path) for path in (certificate, key, authority) if path]
    if not given:
        return None
    if len(given) != 3:
        raise ConfigError(
            f"tls: expected certificate, key and authority together, found {', '.join(map(str, given))} alone; "
            "see --tls-cert, --tls-key and --tls-ca"
        )
    return TlsFiles(*given)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; check the path and its permissions") from None
