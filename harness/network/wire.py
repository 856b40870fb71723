"""The wire that harms: rules, and the process that applies them (its source is in harness/network/native)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness.network.errors import NetworkError, NetworkUnavailableError
from harness.network.nodes import Node

PROGRAM = Path(__file__).resolve().parents[2] / "build/native/harness/network/native/luwu_wire"
ANSWER_SECONDS = 10.0

Action = Literal["drop", "duplicate", "hold", "corrupt", "corrupt_and_fix"]


@dataclass(frozen=True)
class Match:
    """A big-endian number of `width` bytes (1 to 8) in the payload, which after `mask` is `value`."""

    offset: int
    value: int
    width: int = 1
    mask: int = (1 << 64) - 1


@dataclass(frozen=True)
class Rule:
    """Looks at frames of a protocol and maybe a port, whose payload has all matches, and acts on some of these.

    "hold" lets `hold_frames` later frames that the rule looks at go first, or waits `hold_seconds`, whichever ends
    first. "corrupt" flips random bits of the payload and leaves the checksum as it was, so that the receiver's kernel
    drops the frame; "corrupt_and_fix" writes the checksum that fits, so that only the program can notice.
    """

    action: Action
    probability: float = 1.0
    first: int = 1  # of the frames it looks at, counted from 1
    last: int | None = None
    port: int = 0  # source or destination; 0: any
    protocol: Literal["udp", "tcp"] = "udp"
    matches: tuple[Match, ...] = ()
    hold_frames: int = 0
    hold_seconds: float = 0.0
    bits: int = 1


def program() -> Path:
    """Return the path of the wire's program.

    Raises:
        NetworkUnavailableError: it was not built.
    """
    if not PROGRAM.exists():
        raise NetworkUnavailableError(f"{PROGRAM} is not built (tools/native_tests.sh native)")
    return PROGRAM


class Wire:
    """A running wire between the interfaces "a" and "b" of a node."""

    def __init__(self, node: Node, mtu_bytes: int, log: Path, check_checksums: bool = False) -> None:
        settings = {"a": "a", "b": "b", "mtu": mtu_bytes, "control": True, "check_checksums": check_checksums}
        self._log = log
        self._unread = b""
        self._final: dict[str, Any] | None = None
        with node.inside(), log.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(program()), json.dumps(settings)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                bufsize=0, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until it carries frames, which it does once, after it was made."""
        self._answer()

    def harm(self, direction: str, rules: list[Rule], seed: int) -> None:
        """Replace the rules of "a_to_b" or "b_to_a", for every frame sent after this returns."""
        plain = [{name: value for name, value in asdict(rule).items() if value is not None} for rule in rules]
        self._ask({direction: {"seed": seed, "rules": plain}})

    def counts(self) -> dict[str, Any]:
        """Return the wire's counts by direction; after `close`, those of its whole life."""
        return self._final if self._final is not None else self._ask({"counts": True})

    def hang_up(self) -> None:
        """Tell it to end, as it does with its input, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """End it; the link carries nothing any more."""
        if self._final is not None:
            return
        assert self._process.stdout is not None
        self._final = {}
        self.hang_up()
        try:
            self._final = self._answer()
            self._process.wait(ANSWER_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading its answer says why it ended
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
        answer = self._answer()
        if "error" in answer:
            raise NetworkError(f"the wire: {answer['error']}")
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        deadline = time.monotonic() + ANSWER_SECONDS
        while b"\n" not in self._unread:
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(output, 1 << 16) if ready else b""
            if not piece:
                raise NetworkError(f"the wire has ended or hangs: {self._log.read_text()}")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer
