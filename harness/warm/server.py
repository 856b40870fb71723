"""The warm process: `python server.py LISTENER OWNER MODULE...` imports the modules, then forks on request.

LISTENER and OWNER are descriptors of sockets. Whoever connects to LISTENER sends requests with the descriptors of
`Request.send`, whereof the first of the program's own is a pipe for its wait status; the answer is its process id. The
process ends when the other end of OWNER is closed; the programs go on.
"""

from __future__ import annotations

import gc
import importlib
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])  # `harness`, wherever it was started
from harness.warm.request import Request, receive, run, take_over  # noqa: E402
from harness.warm.standby import keep_ready  # noqa: E402


class Server:
    """Forks for those that connect, and tells them how the forks ended."""

    def __init__(self, listener: socket.socket, owner: socket.socket) -> None:
        self._listener, self._owner = listener, owner
        # Ctrl-C reaches all of the terminal's processes. It is for the programs; this one ends with its owner.
        self._on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._events = selectors.DefaultSelector()
        self._events.register(listener, selectors.EVENT_READ)
        self._events.register(owner, selectors.EVENT_READ)

    def serve(self) -> Request | None:
        """Return the request in each fork; return None when the owner has ended."""
        while True:
            for key, _ in self._events.select():
                if key.fileobj is self._owner:
                    return None
                if key.fileobj is self._listener:
                    self._events.register(self._listener.accept()[0], selectors.EVENT_READ)
                elif isinstance(key.fileobj, int):
                    self._tell_end(key)
                elif request := self._answer(key.fileobj):
                    return request

    def _answer(self, client: socket.socket) -> Request | None:
        try:
            received = receive(client)
        except (OSError, ValueError, TypeError):  # it has ended in the middle, or is no client of ours
            received = None
        if received is None:
            self._events.unregister(client)
            client.close()
            return None
        request, (namespace, status, *descriptors) = received
        ready, told = os.pipe()  # closed once the program leads its session: who asked may signal that at once
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, self._on_interrupt)
            for descriptor in (ready, status):
                os.close(descriptor)
            self._forget()
            if request.own_session:
                os.setsid()
            os.close(told)
            take_over(request, [namespace, *descriptors])
            return request
        for descriptor in (told, namespace, *descriptors):
            os.close(descriptor)
        os.read(ready, 1)
        os.close(ready)
        self._events.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))
        with suppress(OSError):  # who asked has ended; the program goes on
            client.send(str(pid).encode())
        return None

    def _forget(self) -> None:
        """Close everything that is not the fork's."""
        for key in self._events.get_map().values():
            os.close(key.fd)
            if key.data:
                os.close(key.data[1])
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.detach()
        self._events.close()

    def _tell_end(self, key: selectors.SelectorKey) -> None:
        pid, status = key.data
        self._events.unregister(key.fd)
        os.close(key.fd)
        told = os.waitpid(pid, 0)[1].to_bytes(4, "little")
        with suppress(BrokenPipeError):  # whoever started it has ended
            os.write(status, told)
        os.close(status)


def main() -> None:
    """Import, serve, and run the program in each fork."""
    listener, owner = (socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:3])
    for module in sys.argv[3:]:
        importlib.import_module(module)
    del sys.path[0]
    gc.freeze()  # what was imported stays, so no fork needs to look at it, and its pages stay shared
    request = Server(listener, owner).serve()
    if request is not None:
        run(keep_ready(request))


if __name__ == "__main__":
    main()
