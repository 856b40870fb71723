"""A worker's end of the network's fabric: the native data plane, and begin and commit over the control plane."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import grpc

from luwu.control import control_pb2 as pb
from luwu.control.client import ControlClient
from luwu.control.links import LinkEndpoint, WorkerLink
from luwu.core.division import Division
from luwu.core.errors import LuwuError
from luwu.core.protocols import HyperParameters, LossScale, Memory
from luwu.session.decision import behind, check_ended_alike, decide, wait_for_decision


class RemoteEndpoint:
    """Endpoint of a data plane and the control planes of its servers. Functions may be called from any thread.

    Handles of commits are negative, the data plane's are not. ``last_attempt`` is the attempt after which a worker
    asked to stop; None: none did. ``trace_request`` is what the first server asks this worker to record of the attempt
    that began last.

    Args:
        link: the data plane.
        controls: control clients of the servers.
        division: pieces of each block on the servers.
    """

    def __init__(self, link: WorkerLink, controls: Sequence[ControlClient], division: Division) -> None:
        self._link = link
        self._data: LinkEndpoint = link.endpoint()
        self._controls = controls
        self._division = division
        self._pushes = [0] * len(controls)
        self._last_pushes: dict[int, int] = {}  # by server; each has its own answered in their order
        self._commits: dict[int, tuple[int, list[grpc.Future]]] = {}  # by handle: time of the request, and its calls
        self._last_commit = 0
        self._grad_norm: float | None = None
        self.last_attempt: int | None = None
        self._asked_last: int | None = None
        self._report = ""  # that goes with the next vote
        self.trace_request: tuple[int, bool] = (0, False)
        self._attempt = 0  # attempts that had ended before the one that began last
        self._annuls: list[grpc.Future] = []  # calls that nobody waits for
        self._epochs: list[int] = []  # of the servers in the last attempt that was not given up before it began

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
        """Bytes at the front of the arena that gradients may use."""
        return self._data.gradient_bytes

    def register(self, nbytes: int) -> Memory:
        """Take the next ``nbytes`` of the arena."""
        return self._data.register(nbytes)

    @property
    def grad_norm(self) -> float | None:
        """Norm before clipping of the last attempt that was waited for; None if it was not computed."""
        return self._grad_norm

    def begin(
        self,
        groups: Sequence[HyperParameters],
        max_grad_norm: float | None = None,
        loss_scale: LossScale | None = None,
    ) -> bool:
        """Start an attempt at a step with these hyper-parameters, before its first pull.

        Returns True in the first attempt of a new epoch: a worker may be new in it.
        """
        request = pb.BeginRequest(max_grad_norm=max_grad_norm)
        if loss_scale is not None:
            request.loss_scale.CopyFrom(pb.LossScale(scale=loss_scale[0], good_steps=loss_scale[1]))
        for values in groups:
            request.groups.add(values=values)
        started = time.monotonic_ns()
        replies = self._finish([control.start("Begin", request) for control in self._controls])
        while late := behind([int(reply.ended) for reply in replies]):
            self._end_behind(late, [int(reply.ended) for reply in replies])
            for server, call in [(server, self._controls[server].start("Begin", request)) for server in late]:
                replies[server] = self._controls[server].finish(call)
        self._attempt = int(replies[0].ended)
        self._data.count_wait(started, started)
        self.trace_request = int(replies[0].trace_records), bool(replies[0].trace_last)
        for server, reply in enumerate(replies):
            self._link.begin_step(server, reply.epoch, reply.given_up)
        if any(reply.given_up for reply in replies):
            return False  # nothing is pulled together in this attempt
        before, self._epochs = self._epochs, [reply.epoch for reply in replies]
        return bool(before) and before != self._epochs

    def pull(self, block: int, alone: bool = False) -> int:
        """Ask for a block; `wait` gives its byte offset in the window. ``alone``: the other workers do not pull it."""
        return self._data.pull(block, alone)

    def release(self, block: int) -> None:
        """Give a pulled block back; its place in the window is then meaningless."""
        self._data.release(block)

    def push(self, block: int, arena_offset: int) -> int:
        """Hand over a block's gradient; once waited for, the buffer may be reused."""
        handle = self._data.push(block, arena_offset)
        self.note_push(block, handle)
        return handle

    @property
    def data_plane(self) -> LinkEndpoint:
        """The data plane alone, which native code calls from its threads."""
        return self._data

    def note_push(self, block: int, handle: int) -> None:
        """Count a push: a commit tells each server the number of pushes to wait for."""
        for server in self._division.servers_of(block):
            self._pushes[server] += 1
            self._last_pushes[server] = handle

    def initialise(self, block: int, arena_offset: int) -> int:
        """Hand over a block's first values, float32."""
        return self._data.initialise(block, arena_offset)

    def finish_initialise(self) -> int:
        """Commit step 0, after every block's `initialise`."""
        return self._data.finish_initialise()

    def ask_to_stop(self, attempt: int) -> None:
        """Ask with the next commit that this attempt, a number that all workers know it by, be the last."""
        self._asked_last = attempt

    def report_with_vote(self, report: str) -> None:
        """Have the first server pass on a report, JSON, before it takes the next vote."""
        self._report = report

    def commit(self, skip: bool = False) -> int:
        """End the attempt; `wait` gives its end, see `luwu.core.protocols.Endpoint`."""
        asked = time.monotonic_ns()
        requests = [
            pb.CommitRequest(roll_back=skip, pushes=pushes, last_attempt=self._asked_last) for pushes in self._pushes
        ]
        requests[0].report, self._report = self._report, ""
        calls = [
            control.start("Commit", request, patient=True)
            for control, request in zip(self._controls, requests, strict=True)
        ]
        self._last_commit -= 1
        self._commits[self._last_commit] = asked, calls
        return self._last_commit

    def wait(self, handle: int) -> int:
        """Block until the request is done and return its result."""
        if handle >= 0:
            return self._data.wait(handle)
        started = time.monotonic_ns()
        asked, calls = self._commits[handle]
        try:
            end = self._decide(self._finish(calls))
            if end != pb.COMMITTED:
                for push in self._last_pushes.values():
                    self._data.wait(push)  # else one that is late would belong to the next step
            self._last_pushes.clear()
            self._link.end_step()
            del self._commits[handle]  # not before: a wait that Ctrl-C ends is begun again
            return end
        finally:
            self._data.count_wait(asked, started)

    def annul(self, attempt: int, server: int) -> None:
        """Tell the other servers that an attempt is void at one of them: there it may wait for the lost worker.

        It sends messages and waits for nothing. Called in any thread.

        Args:
            attempt: number of attempts that had ended before it.
            server: the server where it is void.
        """
        request = pb.DecideRequest(annuls=True, attempt=attempt)
        with suppress(LuwuError):  # the session has ended, and its calls raise that
            calls = [
                control.start("Decide", request, patient=True)
                for other, control in enumerate(self._controls)
                if other != server
            ]
            self._annuls = [call for call in self._annuls if not call.done()] + calls  # else they would be cancelled

    def _end_behind(self, servers: Sequence[int], ended: Sequence[int]) -> None:
        """End the attempt at some servers before anything was pulled: they are behind the others, see `behind`."""
        for server in servers:
            control = self._controls[server]
            control.finish(control.start("Decide", pb.DecideRequest(annuls=True, attempt=ended[server])))
            vote = pb.CommitRequest(roll_back=True, pushes=self._pushes[server])  # no push is missing then
            control.finish(control.start("Commit", vote, patient=True))

    def _decide(self, replies: Sequence[pb.CommitReply]) -> int:
        """Return the end of an attempt, once every server that waits for the decision knows it."""
        told = [reply.last_attempt for reply in replies if reply.HasField("last_attempt")]
        self.last_attempt = max(told, default=None)
        ends = [int(reply.end) for reply in replies]
        decision = decide(ends, [reply.squares if reply.HasField("squares") else None for reply in replies])
        total = decision.squares
        # A negative sum of squares is a fault of a server; the norm is NaN then.
        self._grad_norm = None if total is None else math.sqrt(total) if total >= 0 else math.nan
        request = pb.DecideRequest(
            commits=decision.commits, squares=total, annuls=decision.annuls, attempt=self._attempt
        )
        asked = wait_for_decision(ends)
        check_ended_alike(decision, [(self._controls[server].url, end) for server, end in self._tell(asked, request)])
        return decision.end

    def _tell(self, servers: Sequence[int], request: pb.DecideRequest) -> list[tuple[int, int]]:
        """Tell some servers how an attempt ends; returns each with its end there, once it has ended."""
        calls = [(server, self._controls[server].start("Decide", request, patient=True)) for server in servers]
        return [(server, int(self._controls[server].finish(call).end)) for server, call in calls]

    def _finish(self, calls: Sequence[grpc.Future]) -> list[Any]:
        """Return the answers of all servers."""
        return [control.finish(call) for control, call in zip(self._controls, calls, strict=True)]

    def stats(self) -> dict[str, Any]:
        """Counts since the worker attached: bytes_pulled, bytes_pushed, wait_seconds, busy_seconds."""
        return self._data.stats()
