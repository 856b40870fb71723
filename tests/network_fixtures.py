"""The fixtures `network` and `wired_network`: what makes networks, or skips and says why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.network.errors import NetworkUnavailableError
from harness.network.namespaces import missing
from harness.network.network import Network
from harness.network.wire import program


class NetworkFactory:
    """Makes networks as the class does, with logs in the test's folder; what the test leaves open is closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[Network] = []

    def __call__(self, **options: Any) -> Network:
        network = Network(**options, folder=self._folder / f"network-{len(self._made)}")
        self._made.append(network)
        return network

    def close(self) -> None:
        """Close all networks, and print their processes' output, which pytest shows for a test that failed."""
        for network in reversed(self._made):
            network.close()
            print(network.report())


@pytest.fixture
def network(tmp_path: Path) -> Iterator[NetworkFactory]:
    """Make networks: `with network(mtu_bytes=9000) as net`."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    factory = NetworkFactory(tmp_path)
    yield factory
    factory.close()


@pytest.fixture
def wired_network(network: NetworkFactory) -> NetworkFactory:
    """Make networks whose links may have wires."""
    try:
        program()
    except NetworkUnavailableError as error:
        pytest.skip(str(error))
    return network
