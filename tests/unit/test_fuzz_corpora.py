"""Every input that fuzzing has kept for a Python target, through that target once more, without atheris."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.python.support import faults_raised

from luwu.control import control_pb2 as pb
from luwu.server.grpc_carrier import servicer_of
from luwu.server.local_service import LocalCaller
from luwu.server.socket_carrier import answer_call

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
SUPPORT = ("__init__", "__main__", "cover", "replay", "support")
TARGETS = sorted(file.stem for file in (FUZZ / "python").glob("*.py") if file.stem not in SUPPORT)


@pytest.mark.parametrize("target", TARGETS)
def test_what_fuzzing_found_is_read_or_refused_as_it_should_be(target: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    module = importlib.import_module(f"tests.fuzz.python.{target}")
    inputs = sorted((FUZZ / "corpus" / target).iterdir())
    assert inputs, "a target has a corpus"
    for file in inputs:
        module.test_one_input(file.read_bytes())


def test_every_corpus_has_a_target() -> None:
    native = {file.stem for file in (FUZZ / "native").glob("*.cc")}
    assert {folder.name for folder in (FUZZ / "corpus").iterdir()} == native | set(TARGETS)


class FailingService:
    """A service whose methods all have a fault."""

    def __getattr__(self, method: str) -> Any:
        def fail(request: Any, caller: Any) -> Any:
            raise KeyError("column")

        return fail


@pytest.mark.parametrize("carrier", ["grpc", "socket"])
def test_a_fault_of_a_control_method_is_found_although_logging_is_off(carrier: str) -> None:
    service: Any = FailingService()
    logging.disable(logging.CRITICAL)
    try:
        with pytest.raises(KeyError), faults_raised():
            if carrier == "grpc":
                servicer_of(service).Report(pb.ReportRequest(), None)
            else:
                answer_call(pb.Call(method="Report"), service, LocalCaller())
    finally:
        logging.disable(logging.NOTSET)
