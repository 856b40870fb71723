"""Exit statuses of commands and of the processes that they start; each is declared here alone."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit status of a process, with its meaning.

    Attributes:
        meaning: for whoever reads the status.
    """

    meaning: str

    def __new__(cls, status: int, meaning: str) -> Exit:
        """Make a member; its value is the status."""
        member = int.__new__(cls, status)
        member._value_ = status
        member.meaning = meaning
        return member

    DONE = 0, "Done; also of a server, a switch, a link or a page that SIGTERM or Ctrl-C has stopped."
    FAILED = (
        1,
        "It failed, or the answer is no: a plan does not fit, a store is damaged, a server does not serve, a run has "
        "failed. With a Python traceback it is an error in LuWu itself: report it with `luwu doctor --report`.",
    )
    BAD_INPUT = (
        2,
        "Something that was given cannot work: an option, a setting, a model, a text, a key. The same command ends in "
        "the same way again.",
    )
    SERVER_LOST = (
        3,
        "Of a worker's process that `luwu train` has started: its server or another worker ended first. It is in logs "
        "alone; `luwu train` says what came first.",
    )
    STOPPED = 130, "Ctrl-C has ended it. `luwu train` ends at a commit, and the same command goes on from there."


SIGNAL_BASE = 128
"""Base of the exit status of a process that a signal has ended, as shells give it; the signal's number is added."""

SIGNALLED = range(SIGNAL_BASE + 1, SIGNAL_BASE + 65)
"""Exit statuses of processes that a signal has ended."""


def statuses() -> dict[str, str]:
    """Return the meaning of each exit status."""
    found = {str(status.value): status.meaning for status in Exit}
    found[f"{SIGNAL_BASE} + N"] = (
        f"Signal N has ended it: {SIGNAL_BASE + 9} is SIGKILL's. `luwu launch slurm` passes it on from its steps."
    )
    return found
