"""A wheel in a fresh Debian without a compiler: time from `pip install` to the first loss, in two commands.

debootstrap makes a chroot with Debian's Python and nothing to compile with. The wheels of LuWu (`make wheels`) and of
what it needs are downloaded before, because that time is the network's. Needs root.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.common import ROOT, BenchmarkError, NotInstalledError, Row, arguments, result, run, table

NAME = "first_use"
BAR = "fresh chroot, wheel, no compiler: from `pip install` to the first loss under 90 s after downloads; commands: 2"
UNIT = "seconds"
MOST_SECONDS = 90.0
RELEASE, VERSION = "bookworm", "3.11"
"""The oldest Debian whose Python is new enough, and that Python."""

PACKAGES = "python3,python3-venv"
COMPILERS = ("cc", "gcc", "c++", "g++", "clang", "make", "cmake", "ninja")
INSTALL = "pip install --quiet --no-index --find-links /wheels 'luwu[hf]'"
TRAIN = "exec luwu train --run /run-of-test"  # no shell stays between, so that its end is the run's
FIRST_LOSS = re.compile(r"step 1/\d+ .*loss (\S+)")


def require(*programs: str) -> None:
    """Raise NotInstalledError where a program is missing, or this user may not make a chroot."""
    if os.geteuid() != 0:
        raise NotInstalledError("a chroot needs root")
    for program in programs:
        if shutil.which(program) is None:
            raise NotInstalledError(f"{program} is not installed: apt-get install {program}")


def wheels_of_luwu(version: str) -> list[Path]:
    """Return the wheels in dist/ that a Python of this version takes; raises NotInstalledError for none."""
    tag = f"cp{version.replace('.', '')}"
    found = sorted(
        wheel
        for wheel in (ROOT / "dist").glob("luwu-*x86_64.whl")
        if f"-{tag}-" in wheel.name or ("-abi3-" in wheel.name and tag >= "cp312")
    )
    if not found:
        raise NotInstalledError(f"dist/ has no wheel of luwu for Python {version}: make wheels")
    return found


class Chroot:
    """A fresh Debian in a folder. Mounts are in namespaces of the commands, so nothing is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, folder],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if made.returncode:
            raise BenchmarkError(f"debootstrap failed: {made.stdout[-500:]}")

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command of a shell, with a virtual environment of a user where it is made already."""
        root = shlex.quote(str(self.folder))
        inside = f"export PATH=/user/bin:$PATH HOME=/root; cd /root; {command}"
        mounts = (
            f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && mount -t tmpfs tmpfs {root}/dev/shm"
        )
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", f"{mounts} && exec chroot {root} sh -c {shlex.quote(inside)}"],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, command: str) -> str:
        """Run a command to its end and return its output; raises BenchmarkError where it fails."""
        process = self.start(command)
        output, _ = process.communicate()
        if process.returncode:
            raise BenchmarkError(f"{command}: {output[-800:]}")
        return output


def download(version: str, wheels: Sequence[Path], folder: Path) -> None:
    """Download what the wheels need, for another Python than this one."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version", version,
        *(word for glibc in (17, 28) for word in ("--platform", f"manylinux_2_{glibc}_x86_64")),
        "--platform", "manylinux2014_x86_64", "--platform", "linux_x86_64", "--dest", folder,
        "--constraint", ROOT / "requirements" / "development.txt", *(f"{wheel}[hf]" for wheel in wheels),
    ]  # fmt: skip
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if found.returncode:
        raise BenchmarkError(f"pip download failed: {found.stdout[-800:]}")


def first_loss(chroot: Chroot) -> tuple[float, float, str]:
    """Install and train; return the seconds of the installation, those until the first loss, and that loss."""
    began = time.monotonic()
    chroot.run(INSTALL)
    installed = time.monotonic()
    process = chroot.start(TRAIN)
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if found := FIRST_LOSS.match(line):
                return installed - began, time.monotonic() - installed, found[1]
    finally:
        process.kill()  # the launcher, which its workers die with
        process.communicate()
    raise BenchmarkError(f"luwu train ended without a loss: {''.join(said)[-800:]}")


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    yield (
        f"from `pip install luwu` to the first loss, in a fresh Debian {found['release']} without a compiler",
        f"{found['install']:.0f} s to install, {found['train']:.0f} s to train; 2 commands",
        f"{MOST_SECONDS:.0f} s",
    )


def main() -> int:
    """Install, train, and print a table."""
    options = arguments(__doc__ or NAME)

    def measure() -> dict[str, Any]:
        require("debootstrap", "unshare", "chroot")
        wheels = wheels_of_luwu(VERSION)
        with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
            chroot = Chroot(Path(scratch, "debian"))
            compilers = [name for name in COMPILERS if chroot.run(f"command -v {name} || true").strip()]
            if compilers:
                raise BenchmarkError(f"the chroot has {', '.join(compilers)}")
            (chroot.folder / "wheels").mkdir()
            download(VERSION, wheels, chroot.folder / "wheels")
            chroot.run("python3 -m venv /user")
            install, train, loss = first_loss(chroot)
        table(["", "seconds"], [["pip install", install], ["luwu train, to the first loss", train]])
        whole = install + train
        return result(
            NAME, ours=whole, peer=None, bar=BAR, ok=whole <= MOST_SECONDS, unit=UNIT,
            details={"release": RELEASE, "python": VERSION, "install": install, "train": train, "loss": loss},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
