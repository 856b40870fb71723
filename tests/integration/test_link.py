"""`luwu link` between two hosts whose cable is slow."""

from __future__ import annotations

import json
import sys

import pytest
from tests.network_fixtures import NetworkFactory

from harness.network.namespaces import wait_until

pytestmark = pytest.mark.slow

RATE_BITS = 200e6
MEASURE = """
import json, sys
from dataclasses import asdict
from luwu.control.address import parse_host_port
from luwu.probe.link import measure_link
print(json.dumps(asdict(measure_link(parse_host_port(sys.argv[1]), 1.0))))
"""


def test_a_slow_cable_is_measured_as_what_it_is(network: NetworkFactory) -> None:
    with network() as net:
        link = net.link("here", "there")
        link.limit(RATE_BITS)
        there = net["there"]
        answerer = there.popen([sys.executable, "-m", "luwu.cli", "link", "--listen", f"{there.address}:0"])
        wait_until(lambda: answerer.output().endswith("\n"), "an address", 60)
        measured = json.loads(net["here"].run([sys.executable, "-c", MEASURE, answerer.output().strip()]))
        assert answerer.stop() == 0
    for name in ("to_rate", "back_rate"):
        assert 0.5 * RATE_BITS / 8 < measured[name] < 1.1 * RATE_BITS / 8
    assert measured["both_rate"] < 2.2 * RATE_BITS / 8
    assert measured["both_rate"] > 1.2 * max(measured["to_rate"], measured["back_rate"])  # each way has its own
