"""Lets in who knows the job key: one challenge for one join."""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections import OrderedDict

from luwu.errors import AuthenticationError
from luwu.fabric.credentials import NONCE_BYTES, Credentials, make_nonce

MOST_CHALLENGES = 4096
"""Open challenges that are remembered; of more, the oldest are forgotten."""

log = logging.getLogger(__name__)


class Gate:
    """Challenges participants and checks what they answer. ``refused`` counts those that were sent away."""

    def __init__(self, credentials: Credentials, challenge_seconds: float) -> None:
        self._credentials = credentials
        self._challenge_seconds = challenge_seconds
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self.refused = 0

    @property
    def asks_for_key(self) -> bool:
        """Whether a join needs a proof; without a key, mutual TLS has let the participant in already."""
        return self._credentials.key is not None

    def challenge(self, participant_nonce: bytes) -> bytes:
        """A nonce for one join; raises AuthenticationError."""
        if len(participant_nonce) != NONCE_BYTES:
            raise AuthenticationError(f"nonce: expected {NONCE_BYTES} bytes, found {len(participant_nonce)}")
        nonce = make_nonce()
        with self._lock:
            self._open[nonce] = (participant_nonce, time.monotonic() + self._challenge_seconds)
            while len(self._open) > MOST_CHALLENGES:
                self._open.popitem(last=False)
        return nonce

    def check(self, server_nonce: bytes, proof: bytes, request: str, peer: str) -> bytes:
        """Check the proof for a request and return the server's own.

        Raises:
            AuthenticationError: no such challenge, or the proof does not fit; counted and logged.
        """
        with self._lock:
            participant_nonce, deadline = self._open.pop(server_nonce, (b"", 0.0))
        if time.monotonic() > deadline:
            self._refuse("no open challenge", request, peer)
            raise AuthenticationError(f"{request}: the challenge is unknown, used or too old; join again")
        expected = self._credentials.prove_participant(participant_nonce, server_nonce, request)
        if self.asks_for_key and not hmac.compare_digest(proof, expected):
            self._refuse("wrong job key" if proof else "no job key", request, peer)
            raise AuthenticationError(
                f"{request}: the job key is not the server's; use the key file that the server was started with"
                if proof
                else f"{request}: this server asks for a job key, none was given; name its file with key_file=, "
                "--key-file or LUWU_JOB_KEY_FILE"
            )
        return self._credentials.prove_server(participant_nonce, server_nonce, request)

    def _refuse(self, why: str, request: str, peer: str) -> None:
        with self._lock:
            self.refused += 1
            count = self.refused
        log.warning("refused %s peer=%s why=%r refused=%d", request, peer, why, count)
