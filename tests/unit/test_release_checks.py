"""tools/release_checks.py: what keeps a release from being one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import release_checks as checks

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-11-30\n\n### Added\n\n- A thing.\n"


def files(version: str) -> set[str]:
    """Return the names of a whole release."""
    wheels = {
        f"luwu-{version}-{python}-manylinux_2_27_{machine}.manylinux_2_28_{machine}.whl"
        for python in ("cp310-cp310", "cp311-cp311", "cp312-abi3")
        for machine in ("x86_64", "aarch64")
    }
    return wheels | {f"luwu-{version}.tar.gz"}


def test_the_version_is_pyprojects() -> None:
    assert checks.version_of('[project]\nname = "luwu"\nversion = "1.2.0" # the one place\n') == "1.2.0"
    with pytest.raises(ValueError, match="found none"):
        checks.version_of("[project]\n")


@pytest.mark.parametrize("tags", [[], ["v1.2.0"], ["v1.2.0", "nightly"]])
def test_a_clean_checkout_with_a_changelog_may_be_released(tags: list[str]) -> None:
    assert checks.source_problems("1.2.0", CHANGELOG, [], tags) == []


@pytest.mark.parametrize(
    ("changelog", "changes", "tags", "said"),
    [
        (CHANGELOG, [" M README.md"], [], "changes: M README.md"),
        (CHANGELOG.replace("1.2.0", "1.1.0"), [], [], r"expected a section ## \[1.2.0\]"),
        (CHANGELOG.replace("2026-11-30", "soon"), [], [], r"expected a section ## \[1.2.0\]"),
        (CHANGELOG.replace("ed]\n", "ed]\n\n- More.\n", 1), [], [], r"\[Unreleased\] has entries"),
        (CHANGELOG, [], ["v1.1.0"], "version 1.2.0, but the commit's tag is v1.1.0"),
    ],
)
def test_what_keeps_a_checkout_from_release(changelog: str, changes: list[str], tags: list[str], said: str) -> None:
    (problem,) = checks.source_problems("1.2.0", changelog, changes, tags)
    assert re.search(said, problem)


def test_a_release_has_every_wheel() -> None:
    whole = files("1.2.0")
    assert checks.wheel_problems("1.2.0", whole) == []
    for name in whole:
        assert len(checks.wheel_problems("1.2.0", whole - {name})) == 1
    newer = {name.replace("manylinux_2_28_aarch64", "manylinux_2_31_aarch64") for name in whole}
    assert len(checks.wheel_problems("1.2.0", newer)) == 6  # three are missing, and three are not of a release
    old = "luwu-1.1.0-cp312-abi3-manylinux_2_28_x86_64.whl"
    assert checks.wheel_problems("1.2.0", whole | {old}) == [f"{old} is no file of version 1.2.0"]


def test_a_source_distribution_has_what_a_build_needs() -> None:
    whole = {f"luwu-1.2.0/{name}" for name in checks.SOURCES}
    assert checks.archive_problems("1.2.0", whole) == []
    lacking = whole - {"luwu-1.2.0/CMakeLists.txt"}
    assert checks.archive_problems("1.2.0", lacking) == ["the source distribution lacks CMakeLists.txt"]
    more = whole | {"luwu-1.2.0/build/setup/lock"}
    assert checks.archive_problems("1.2.0", more) == ["the source distribution has build/setup/lock"]


def test_this_checkouts_sources_are_where_the_check_looks() -> None:
    assert [name for name in checks.SOURCES if not (ROOT / name).exists()] == []
