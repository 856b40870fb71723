"""Gate of the control plane: each join answers one challenge with the job key; unanswered challenges take no memory."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import struct
import threading
import time
from collections import OrderedDict

from luwu.control.credentials import NONCE_BYTES, Credentials
from luwu.core.errors import AuthenticationError
from luwu.server.participants import on_one_line

CLOSED = "the challenge is unknown, used or too old; join again"

_MADE_AT = struct.Struct("<d")
_SEAL_BYTES = 32
_CHALLENGE_BYTES = _MADE_AT.size + NONCE_BYTES + _SEAL_BYTES

_LINES_AT_ONCE = 100
_LINES_PER_SECOND = 1.0

log = logging.getLogger(__name__)


class RefusalLog:
    """Logs refusals, which strangers cause as often as they like: few in a second, so that they fill no disk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._room = float(_LINES_AT_ONCE)
        self._at = time.monotonic()
        self._left_out = 0

    def warning(self, text: str, *values: object) -> None:
        """Log a refusal, with the number of those since the last line that were left out."""
        with self._lock:
            now = time.monotonic()
            self._room = min(_LINES_AT_ONCE, self._room + (now - self._at) * _LINES_PER_SECOND)
            self._at = now
            if self._room < 1:
                self._left_out += 1
                return
            self._room -= 1
            left_out, self._left_out = self._left_out, 0
        log.warning(f"{text} left_out=%d" if left_out else text, *values, *([left_out] if left_out else ()))


class Gate:
    """Challenges participants and checks their answers. ``refused`` counts the participants that were sent away.

    ``refusals``: the log of them.

    A challenge is a cookie: the time at which it was made, the participant's own nonce, and an HMAC of both and of the
    participant's host under a secret that this server draws when it starts. So asking for challenges, however often,
    takes no memory and displaces nobody. Only challenges that were answered with a good proof are remembered, until
    they are too old, so that each is good for one join.
    """

    def __init__(self, credentials: Credentials, challenge_seconds: float) -> None:
        self._credentials = credentials
        self._challenge_seconds = challenge_seconds
        self._secret = secrets.token_bytes(_SEAL_BYTES)
        self._lock = threading.Lock()
        self._used: OrderedDict[bytes, float] = OrderedDict()  # seal, and when it was used
        self.refusals = RefusalLog()
        self.refused = 0

    @property
    def asks_for_key(self) -> bool:
        """True if a join needs a proof. Without a key, mutual TLS has let the participant in already."""
        return self._credentials.key is not None

    def challenge(self, participant_nonce: bytes, peer: str) -> bytes:
        """Return a nonce for one join from this peer's host; raises AuthenticationError."""
        if len(participant_nonce) != NONCE_BYTES:
            raise AuthenticationError(f"nonce: expected {NONCE_BYTES} bytes, found {len(participant_nonce)}")
        content = _MADE_AT.pack(time.monotonic()) + participant_nonce
        return content + self._seal(content, peer)

    def check(self, server_nonce: bytes, proof: bytes, request: str, peer: str, shown: str = "") -> bytes:
        """Check the proof for a request and return the server's own.

        ``shown``: the request in words, for whoever is refused and for the log; empty: the request itself.

        Raises:
            AuthenticationError: no such challenge, or the proof does not fit; counted and logged.
        """
        content, seal = server_nonce[:-_SEAL_BYTES], server_nonce[-_SEAL_BYTES:]
        shown = on_one_line(shown or request)
        if not self._is_open(content, seal, peer):
            raise self._refusal("no open challenge", f"{shown}: {CLOSED}", shown, peer)
        participant_nonce = content[_MADE_AT.size :]
        expected = self._credentials.prove_participant(participant_nonce, server_nonce, request)
        if self.asks_for_key and not hmac.compare_digest(proof, expected):
            why = (
                "the job key is not the server's; use the key file that the server was started with"
                if proof
                else "this server asks for a job key, none was given; name its file with key_file=, --key-file or "
                "LUWU_JOB_KEY_FILE"
            )
            raise self._refusal("wrong job key" if proof else "no job key", f"{shown}: {why}", shown, peer)
        if not self._use(seal):
            raise self._refusal("no open challenge", f"{shown}: {CLOSED}", shown, peer)
        return self._credentials.prove_server(participant_nonce, server_nonce, request)

    def _seal(self, content: bytes, peer: str) -> bytes:
        return hmac.digest(self._secret, content + _host_of(peer).encode(), hashlib.sha256)

    def _is_open(self, content: bytes, seal: bytes, peer: str) -> bool:
        if len(content) + len(seal) != _CHALLENGE_BYTES or not hmac.compare_digest(seal, self._seal(content, peer)):
            return False
        (made_at,) = _MADE_AT.unpack_from(content)
        return bool(time.monotonic() - made_at <= self._challenge_seconds)

    def _use(self, seal: bytes) -> bool:
        """Note that a challenge was answered; True the first time."""
        now = time.monotonic()
        with self._lock:
            while self._used and now - next(iter(self._used.values())) > self._challenge_seconds:
                self._used.popitem(last=False)
            fresh = seal not in self._used
            self._used.setdefault(seal, now)
        return fresh

    def _refusal(self, why: str, message: str, shown: str, peer: str) -> AuthenticationError:
        """Return the error for a participant that is refused; counts and logs it."""
        with self._lock:
            self.refused += 1
            count = self.refused
        self.refusals.warning("refused %s peer=%s why=%r refused=%d", shown, peer, why, count)
        return AuthenticationError(message)


def _host_of(peer: str) -> str:
    """Return the host of a peer ``HOST:PORT``; the port differs after a reconnection."""
    return peer.rpartition(":")[0]
