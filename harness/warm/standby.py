"""Forks of a program, made before it runs, that wait to become its first children.

A program that has threads cannot fork safely, and its children must be its own, so that it can wait for them and the
kernel can end them with it. Where the program starts a Python module with `subprocess.Popen`, a standby becomes it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from harness.warm.request import Request, close_pipe_ends, given_to_popen, receive, request_for, take_over


@dataclass(frozen=True)
class _Standby:
    pid: int
    requests: socket.socket


_standbys: list[_Standby] = []


def keep_ready(request: Request) -> Request:
    """Fork the standbys that a request asks for. Return the request, and in each standby the one that it gets."""
    for _ in range(request.standbys):
        own, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            own.close()
            for other in _standbys:
                other.requests.close()
            _standbys.clear()
            for number in request.numbers:
                if number > 2:
                    os.close(number)  # the program's alone: who waits for its end would wait for this process, too
            return _wait(given)
        given.close()
        _standbys.append(_Standby(pid, own))
    if _standbys:
        subprocess.Popen = _Popen  # type: ignore[misc]
    return request


def _wait(requests: socket.socket) -> Request:
    with open(os.devnull, "r+b", buffering=0) as nothing:  # the program's own streams end with it
        for stream in (0, 1, 2):
            os.dup2(nothing.fileno(), stream)
    received = receive(requests)
    requests.close()
    if received is None:
        os._exit(0)  # the program has ended
    request, descriptors = received
    take_over(request, descriptors)
    return request


class _Popen(subprocess.Popen[Any]):
    """Turns a standby into a Python module that is to start; starts everything else as ever."""

    def _execute_child(self, *values: Any) -> None:
        given = given_to_popen(self, values)
        words = given["args"]
        if _standbys and isinstance(words, list) and words[:2] == [sys.executable, "-m"]:
            standby = _standbys.pop(0)
            with standby.requests:
                request, descriptors = request_for(words[1:], given)
                request.send(standby.requests, descriptors)
            self.pid = standby.pid
            close_pipe_ends(self, given)
        else:
            super()._execute_child(*values)  # type: ignore[misc]
