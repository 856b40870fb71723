"""torch.profiler over the attempts that a trace has, when whoever asked for the trace wants it of this worker."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
from torch._C._autograd import DeviceType, _KinetoEvent, _profiler_enabled
from torch.profiler import ProfilerActivity, profile

from luwu.core.profiling import Event, Profile, moment, pack

_ACTIVE = (
    "torch.profiler was active already in this worker's program; trace without it, or when the program does not profile"
)

log = logging.getLogger(__name__)


class TorchProfiler:
    """torch.profiler from now until `stop`. Errors of it do not hurt training: they become the profile's ``failure``.

    Start and stop it in one thread, the one that trains. It sees that thread, those that work for it, and the CUDA
    devices.

    Args:
        most_bytes: most bytes of its events.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._failure = ""
        self._profile: profile | None = None
        self._began = self._ended = moment()
        # a second profiler would take the events of the first one, without an error
        if _profiler_enabled():
            self._failure = _ACTIVE
            return
        activities = {ProfilerActivity.CPU}
        if torch.cuda.is_available():
            activities.add(ProfilerActivity.CUDA)
        made = profile(activities=activities & torch.profiler.supported_activities())
        try:
            made.start()
        except Exception as error:
            self._fail("start", error)
        else:
            self._profile = made

    def stop(self) -> None:
        """Stop it; called once."""
        if self._profile is None:
            return
        if not _profiler_enabled():
            self._profile, self._failure = None, "another profiler of this worker's program has ended it"
            return
        try:
            self._profile.stop()
        except Exception as error:
            self._fail("stop", error)
        self._ended = moment()

    def pack(self) -> Profile:
        """Return its events, once it has stopped."""
        if self._profile is not None:
            try:
                return pack(_events_of(self._profile), self._most_bytes, self._began, self._ended)
            except Exception as error:
                self._fail("give its events", error)
        return Profile(failure=self._failure)

    def _fail(self, what: str, error: Exception) -> None:
        self._profile = None
        self._failure = f"torch.profiler could not {what}: {error!r}"
        log.debug("torch.profiler could not %s", what, exc_info=error)


def _events_of(made: profile) -> Iterator[Event]:
    """Return the events as Kineto has them, which `profile.events` would make objects of, slowly."""
    results = made.profiler.kineto_results if made.profiler is not None else None
    if results is None:
        raise RuntimeError("it has no results")
    for event in results.events():
        begin = event.start_ns()
        yield Event(begin, begin + max(0, event.duration_ns()), event.name(), _track_of(event))


def _track_of(event: _KinetoEvent) -> str:
    if event.device_type() == DeviceType.CPU:
        return f"thread {event.device_resource_id()}"
    return f"device {event.device_index()}, stream {event.device_resource_id()}"
