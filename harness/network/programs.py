"""Programs for the kernel that the build makes from harness/network/native."""

from __future__ import annotations

from pathlib import Path

from harness.network.errors import NetworkUnavailableError

BUILD = Path(__file__).resolve().parents[2] / "build/native"


def built(name: str) -> Path:
    """Return the path of a program for the kernel, such as ``card.bpf.o``.

    Raises:
        NetworkUnavailableError: it was not built.
    """
    program = BUILD / name
    if not program.exists():
        raise NetworkUnavailableError(
            f"{program} is not built (tools/native_tests.sh native; needs clang and libbpf-dev)"
        )
    return program
