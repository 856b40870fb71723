"""Members of a run: the end of its native server, whose last reference keeps the store locked."""

from __future__ import annotations

import threading
import weakref

import pytest

from luwu.core.errors import ServerError, StoreSpaceError
from luwu.core.manifest import BlockManifest, Manifest
from luwu.server.membership import Membership

MANIFEST = Manifest("float32", 1024, (BlockManifest("<root>", True, (), 32),))


class SlowCore:
    """A native server whose counts take until they are let through."""

    initialised = True

    def __init__(self, asked: threading.Event, through: threading.Event) -> None:
        self._asked = asked
        self._through = through

    def stats(self) -> dict[str, int]:
        self._asked.set()
        assert self._through.wait(30)
        return {"step": 3}

    def failure(self) -> None:
        return None

    def close(self) -> None:
        pass


def test_a_server_has_ended_when_close_returns():
    asked, through = threading.Event(), threading.Event()
    cores: list[weakref.ref[SlowCore]] = []

    def open_core(manifest: Manifest) -> SlowCore:
        core = SlowCore(asked, through)
        cores.append(weakref.ref(core))
        return core

    members = Membership(1, open_core)
    members.join(0, 1)
    members.attach(0, MANIFEST)
    steps: list[int] = []
    watcher = threading.Thread(target=lambda: steps.append(members.step))
    watcher.start()
    assert asked.wait(30)
    ended = threading.Event()
    closer = threading.Thread(target=lambda: (members.close(), ended.set()))
    closer.start()
    assert not ended.wait(0.05)  # it waits for the answer
    through.set()
    assert ended.wait(30)
    assert cores[0]() is None
    watcher.join()
    closer.join()
    assert steps == [3] and members.step == 0


def fail() -> None:
    raise StoreSpaceError("no room")


class FailingCore:
    """A native server that fails; as in native code, no frame of the error refers to it."""

    initialised = True
    commit = staticmethod(fail)

    def close(self) -> None:
        pass


def test_an_error_that_somebody_keeps_does_not_keep_the_server():
    cores: list[weakref.ref[FailingCore]] = []

    def open_core(manifest: Manifest) -> FailingCore:
        core = FailingCore()
        cores.append(weakref.ref(core))
        return core

    members = Membership(1, open_core)
    members.join(0, 1)
    members.attach(0, MANIFEST)
    with pytest.raises(StoreSpaceError) as kept, members.core() as lent:
        lent.commit()
    members.close()
    assert kept.value.__traceback__ is not None  # its frames refer to what was lent
    assert cores[0]() is None
    with pytest.raises(ServerError, match="the server has closed the store"):
        lent.commit()
