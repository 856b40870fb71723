"""Settings that all tests share."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest
from tests.network_fixtures import network, wired_network

from harness.small_disk import NotMountedError, SmallDisk, mounted_disk
from harness.warm import ADDRESS, LUWU_MODULES, serve_warm

__all__ = ["network", "wired_network"]  # fixtures

# The same examples in every run, and no time for any of them: a test that is slow beside other programs is not wrong.
hypothesis.settings.register_profile(
    "luwu", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("luwu")

# Tests start several processes on few cores: one thread each, set before torch is imported here or in a child.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Begin each test at the same seed of torch's, whichever tests ran before it in this process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_configure(config: pytest.Config) -> None:
    """Start the process that the tests' programs are forks of; pytest's own processes share it."""
    if not hasattr(config, "workerinput"):
        warm = ExitStack()
        os.environ[ADDRESS] = warm.enter_context(serve_warm(LUWU_MODULES))
        config.add_cleanup(warm.close)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that runs tests of the worker on a device."""
    parser.addoption(
        "--simulated-device",
        action="store_true",
        help="models compute on a simulated device, whose copies are checked, where a test asks for the CPU",
    )
    parser.addoption(
        "--device-memory",
        metavar="SIZE",
        help="memory of the simulated device for blocks that stay; default: none stays",
    )
    parser.addoption(
        "--record-gradients",
        metavar="FILE",
        help="append to this file, for each test, a hash of all gradients that its workers push",
    )


@pytest.fixture(autouse=True)
def recorded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Note with --record-gradients what the test's workers push, so that two runs of it can be compared."""
    file = request.config.getoption("--record-gradients")
    if not file:
        yield
        return
    from tests.gradient_record import record_gradients

    pushed = record_gradients(monkeypatch)
    yield
    if pushed:
        digest = hashlib.sha256("".join(sorted(pushed)).encode()).hexdigest()
        with Path(file).open("a") as lines:
            lines.write(json.dumps({"test": request.node.nodeid, "pushes": len(pushed), "digest": digest}) + "\n")


@pytest.fixture(autouse=True)
def simulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let models compute on a simulated device with --simulated-device, and check the order of accesses."""
    if not request.config.getoption("--simulated-device"):
        yield
        return
    if request.node.get_closest_marker("host_only"):
        pytest.skip("about the CPU, which computes in the server's memory")
    device_memory = request.config.getoption("--device-memory")
    if device_memory and request.node.get_closest_marker("counts_pulls"):
        pytest.skip("about pulls, which blocks that stay on the device do without")
    from tests.simulated_device import compute_on_device, the_twin

    compute_on_device(monkeypatch, device_memory)
    yield
    gc.collect()
    assert the_twin().findings() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A small disk, mounted for one test; without root the test is skipped."""
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(mounted_disk(tmp_path / "small-disk"))
        except NotMountedError as error:
            pytest.skip(str(error))
        yield disk


@pytest.fixture
def interrupt_handler() -> Iterator[None]:
    """Install Python's handler of Ctrl-C, which a process that a shell has put into the background starts without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
