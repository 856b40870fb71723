"""A worker's end of the network's fabric: the native data plane, and begin and commit over the control plane."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import grpc

from luwu.fabric import control_pb2 as pb
from luwu.fabric.control import ControlClient
from luwu.fabric.links import WorkerLink
from luwu.worker.interface import DataEndpoint, HyperParameters, Memory


class RemoteEndpoint:
    """Puts a data plane and the control plane together. Handles of commits are negative, the data plane's are not.

    Functions may be called from any thread.
    """

    def __init__(self, link: WorkerLink, control: ControlClient, *, shared_window: bool) -> None:
        self._link = link
        self._data: DataEndpoint = link.endpoint(shared_window)
        self._control = control
        self._pushes = 0
        self._last_push: int | None = None
        self._commits: dict[int, grpc.Future] = {}
        self._last_commit = 0
        self._commit_seconds = 0.0

    @property
    def window(self) -> Memory:
        """The mapped window, bytes; pulled blocks lie in it at the offset that `wait` returned."""
        return self._data.window

    @property
    def arena_bytes(self) -> int:
        """Size of the arena, which first values and gradients travel through."""
        return self._data.arena_bytes

    @property
    def gradient_bytes(self) -> int:
        """How much of the arena's front may be used for gradients."""
        return self._data.gradient_bytes

    def register(self, nbytes: int) -> Memory:
        """Take the next ``nbytes`` of the arena."""
        return self._data.register(nbytes)

    def begin(self, groups: Sequence[HyperParameters]) -> None:
        """Start an attempt at a step with these hyper-parameters, before its first pull."""
        request = pb.BeginRequest()
        for lr, beta1, beta2, eps, weight_decay in groups:
            request.groups.add(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
        reply = self._control.call("Begin", request)
        self._link.begin_step(reply.epoch, reply.given_up)

    def pull(self, block: int, alone: bool = False) -> int:
        """Ask for a block; `wait` gives its byte offset in the window. ``alone``: the other workers do not."""
        return self._data.pull(block, alone)

    def release(self, block: int) -> None:
        """Give a pulled block back; its place in the window is then meaningless."""
        self._data.release(block)

    def push(self, block: int, arena_offset: int) -> int:
        """Hand over a block's gradient; once waited for, the buffer may be reused."""
        handle = self._data.push(block, arena_offset)
        self._pushes += 1
        self._last_push = handle
        return handle

    def initialise(self, block: int, arena_offset: int) -> int:
        """Hand over a block's first values, float32."""
        return self._data.initialise(block, arena_offset)

    def finish_initialise(self) -> int:
        """Commit step 0, after every block's `initialise`."""
        return self._data.finish_initialise()

    def commit(self, skip: bool = False) -> int:
        """End the attempt; `wait` gives 1 if it was committed, 0 if rolled back, as ``skip`` asks for."""
        call = self._control.start("Commit", pb.CommitRequest(roll_back=skip, pushes=self._pushes), patient=True)
        self._last_commit -= 1
        self._commits[self._last_commit] = call
        return self._last_commit

    def wait(self, handle: int) -> int:
        """Block until the request is done and return its result."""
        if handle >= 0:
            return self._data.wait(handle)
        started = time.perf_counter()
        try:
            committed = int(self._control.finish(self._commits.pop(handle)).committed)
            if not committed and self._last_push is not None:
                self._data.wait(self._last_push)  # else one that is late would belong to the next step
            self._last_push = None
            self._link.end_step()
            return committed
        finally:
            self._commit_seconds += time.perf_counter() - started

    def stats(self) -> dict[str, Any]:
        """Counts since the worker attached: bytes_pulled, bytes_pushed, wait_seconds, busy_seconds."""
        stats = self._data.stats()
        return stats | {name: stats[name] + self._commit_seconds for name in ("wait_seconds", "busy_seconds")}
