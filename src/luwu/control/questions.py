"""Errors of questions to a server that are no session's: why there was no answer."""

from __future__ import annotations

import grpc

from luwu.control.address import parse_url
from luwu.control.credentials import Credentials
from luwu.control.probing import Answer, probe
from luwu.control.timeouts import Timeouts
from luwu.core.errors import ServerError


def why_unanswered(
    url: str, credentials: Credentials, timeouts: Timeouts, error: grpc.RpcError, question: str
) -> ServerError:
    """Make the error of a question without an answer from what the port says to a connection."""
    answer = probe(parse_url(url), timeouts.retry_seconds, credentials.tls)
    if answer is Answer.REFUSED:
        return ServerError(f"{url} refused the connection: no server listens there; start it, or check the address")
    if answer is Answer.OTHER:
        ours = "with TLS that fits these certificates" if credentials.tls else "without TLS"
        certificates = "" if credentials.tls else ", or name certificates with --tls-cert, --tls-key and --tls-ca"
        return ServerError(
            f"{url}: expected a luwu server {ours}, found a port that answers otherwise; check the address and the "
            f"port{certificates or ', and the certificates of both sides'}"
        )
    within = f"{url} did not answer {question} within {timeouts.health_seconds:g} s"
    if answer is Answer.CLOSED:
        return ServerError(
            f"{within}: connections were closed without an answer; check the address and the port, or end who opens "
            "too many connections from this host's address"
        )
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return ServerError(f"{url}: expected a luwu server, found another gRPC server; check the address and the port")
    return ServerError(f"{within}; look at its log, check the address and what lies between, or ask again")
