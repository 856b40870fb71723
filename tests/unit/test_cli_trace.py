"""`luwu trace` says what its file does not have."""

from __future__ import annotations

import pytest

from luwu.cli.trace import say_what_is_missing
from luwu.control import control_pb2 as pb


@pytest.mark.parametrize(
    ("process", "words"),
    [
        (pb.ProcessTrace(name="server 1", dropped=1200), "server 1: 1,200 spans found no room"),
        (pb.ProcessTrace(name="worker 1", profile=pb.Profile(dropped=3)), "worker 1: 3 events of torch.profiler found"),
        (pb.ProcessTrace(name="worker 1", profile=pb.Profile(failure="x")), "worker 1: no events of torch.profiler: x"),
        (pb.ProcessTrace(name="worker 1"), "worker 1: no events of torch.profiler came; install"),
        (pb.ProcessTrace(name="worker 0"), ""),
    ],
)  # fmt: skip
def test_what_a_trace_does_not_have_is_said(
    process: pb.ProcessTrace, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say_what_is_missing(pb.RunTrace(processes=[process]), 1)
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(words) and bool(said.err) == bool(words)


def test_records_that_did_not_come_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    say_what_is_missing(pb.RunTrace(missing=["worker 3"]), None)
    assert capsys.readouterr().err == "worker 3: its records did not come\n"
