"""Checks of a release: its version, changelog, tag, wheels and source distribution. tools/release.sh runs them.

usage: python tools/release_checks.py source | files FOLDER
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Collection, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("cp310-cp310", "cp311-cp311", "cp312-abi3")
ARCHITECTURES = ("x86_64", "aarch64")
MOST_GLIBC = 28
"""Wheels run with glibc 2.28 or earlier."""

SOURCES = (
    "pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md", "CHANGELOG.md", "cmake/FindUring.cmake",
    "native/bindings/module.cc", "bpf/switch.bpf.c", "src/luwu/__init__.py", "src/luwu/control/control_pb2.py",
)  # fmt: skip
"""Some file of every part that a build needs."""

NOT_SOURCES = (".ci/", ".venv/", "build/", "dist/", "benchmarks/results/")


def version_of(pyproject: str) -> str:
    """Return the version that a pyproject.toml states; raises ValueError for none."""
    found = re.search(r'^version = "([^"]+)"', pyproject, re.MULTILINE)
    if found is None:
        raise ValueError('pyproject.toml: expected a line version = "...", found none')
    return found[1]


def source_problems(version: str, changelog: str, changes: Sequence[str], tags: Collection[str]) -> list[str]:
    """Return what keeps a checkout from being released as this version.

    `changes` are lines of `git status --porcelain`, `tags` those that name the checked-out commit.
    """
    problems = [f"the checkout has changes: {line.strip()}" for line in changes]
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    if not any(re.match(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n", section) for section in sections):
        problems.append(f"CHANGELOG.md: expected a section ## [{version}] - YEAR-MONTH-DAY, found none")
    unreleased = next((section for section in sections if section.startswith("[Unreleased]")), "")
    if "\n- " in unreleased:
        problems.append(f"CHANGELOG.md: [Unreleased] has entries; move them to [{version}]")
    others = sorted(tag for tag in tags if tag.startswith("v") and tag != f"v{version}")
    if others:
        problems.append(f"pyproject.toml has version {version}, but the commit's tag is {', '.join(others)}")
    return problems


def wheel_problems(version: str, names: Collection[str]) -> list[str]:
    """Return which wheels of a release are missing among these file names, and which files do not belong to it."""
    problems = []
    known = set()
    for python in PYTHONS:
        for architecture in ARCHITECTURES:
            pattern = rf"luwu-{re.escape(version)}-{python}-[\w.]*manylinux_2_(\d+)_{architecture}\.whl"
            matches = [re.fullmatch(pattern, name) for name in names]
            found = {match[0] for match in matches if match and int(match[1]) <= MOST_GLIBC}
            known |= found
            if len(found) != 1:
                problems.append(f"expected one wheel {python} of {architecture} for glibc 2.28, found {len(found)}")
    source = f"luwu-{version}.tar.gz"
    if source not in names:
        problems.append(f"expected {source}, found none")
    return problems + [f"{name} is no file of version {version}" for name in sorted(set(names) - known - {source})]


def archive_problems(version: str, members: Collection[str]) -> list[str]:
    """Return what a source distribution with these members lacks, and what it should not have."""
    inside = {member.removeprefix(f"luwu-{version}/") for member in members}
    return [f"the source distribution lacks {name}" for name in SOURCES if name not in inside] + [
        f"the source distribution has {name}" for name in sorted(inside) if name.startswith(NOT_SOURCES)
    ]


def git(*words: str) -> list[str]:
    """Return the lines that a git command prints."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def main(words: Sequence[str]) -> int:
    """Print the problems, if any, and return the exit status."""
    version = version_of((ROOT / "pyproject.toml").read_text())
    if words == ["source"]:
        changelog = (ROOT / "CHANGELOG.md").read_text()
        problems = source_problems(version, changelog, git("status", "--porcelain"), git("tag", "--points-at", "HEAD"))
    elif len(words) == 2 and words[0] == "files":
        folder = Path(words[1])
        problems = wheel_problems(version, {file.name for file in folder.iterdir()})
        source = folder / f"luwu-{version}.tar.gz"
        if source.exists():
            with tarfile.open(source) as archive:
                problems += archive_problems(version, archive.getnames())
    else:
        print(__doc__, file=sys.stderr)
        return 2
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
