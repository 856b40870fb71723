"""The rights of root that a process keeps when it becomes a switch inside the kernel."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")

STATUS = """
import os, threading
from luwu import _native
def show():
    with open("/proc/self/status") as lines:
        print(*(line.strip().replace("\\t", " ") for line in lines if line.startswith(WANTED)), sep="\\n")
WANTED = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
"""
KEPT = f"{1 << 12 | 1 << 38 | 1 << 39:016x}"
NONE = "0" * 16


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", STATUS + code], capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(("user", "ids"), [("(1234, 567)", ("1234", "567")), ("None", ("0", "0"))])
def test_three_capabilities_are_kept_and_none_is_in_force(user, ids):
    ended = run(f"_native.keep_xdp_capabilities_alone({user}); show()")
    assert ended.returncode == 0, ended.stderr
    found = dict(line.split(":", 1) for line in ended.stdout.splitlines())
    assert [found[name].split() for name in ("Uid", "Gid")] == [[number] * 4 for number in ids]
    assert found["CapPrm"].strip() == KEPT
    assert {found[name].strip() for name in ("CapInh", "CapEff", "CapBnd", "CapAmb")} == {NONE}
    assert found["NoNewPrivs"].strip() == "1"
    if user != "None":
        assert found["Groups"].strip() == ""


def test_what_was_given_up_does_not_come_back():
    ended = run("_native.keep_xdp_capabilities_alone((1234, 567)); os.setuid(0)")
    assert "PermissionError" in ended.stderr


def test_a_process_that_has_threads_is_refused():
    ended = run(
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "_native.keep_xdp_capabilities_alone(None)"
    )
    assert "before this process has other threads" in ended.stderr
