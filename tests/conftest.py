"""Settings that all tests share."""

from __future__ import annotations

import os
import sys

import hypothesis
import pytest
from tests.network.fixtures import network, wired_network
from tests.small_disk import small_disk

__all__ = ["network", "small_disk", "wired_network"]  # fixtures

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
