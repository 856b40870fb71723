"""The order of the folders of native/, and the check that keeps it."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import include_order

ROOT = include_order.ROOT
TOOL = ROOT / "tools" / "include_order.py"


def including(*headers):
    return "#pragma once\n\n" + "".join(f'#include "{header}"\n' for header in headers)


def test_this_tree_keeps_the_order():
    ended = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_every_room_of_this_tree_is_in_the_order():
    sources = include_order.read_sources(ROOT / "native")
    assert len(list(include_order.includes_of(sources))) > 100
    assert {include_order.room_of(file) for file in sources} <= set(include_order.ROOMS)


def test_includes_of_the_same_room_and_of_lower_ones_are_right():
    sources = {
        "kernels/sum.h": including(),
        "kernels/keep.h": including("kernels/sum.h"),
        "fabric/core/address.h": including("kernels/keep.h"),
        "fabric/udp/port.cc": including("fabric/core/address.h", "kernels/sum.h"),
        "bindings/sum.cc": "#include <nanobind/nanobind.h>\n",
    }
    assert include_order.problems(sources) == []


def test_a_circle_of_two_rooms_names_the_include_that_goes_up():
    sources = {
        "store/chunks.h": including("pipeline/pass.h"),
        "pipeline/pass.h": including("store/layout.h"),
        "store/layout.h": including(),
    }
    (problem,) = include_order.problems(sources)
    assert problem.startswith('store/chunks.h:3: store includes "pipeline/pass.h" of pipeline, a room above it; ')
    assert "an interface in store that pipeline implements" in problem


def test_a_circle_of_headers_in_one_room_is_named_in_whole():
    sources = {
        "store/a.h": including("store/b.h"),
        "store/b.h": including("store/c.h"),
        "store/c.h": including("store/a.h"),
    }
    (problem,) = include_order.problems(sources)
    assert "store/c.h:3: closes a circle of includes, store/a.h -> store/b.h -> store/c.h -> store/a.h" in problem


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("fabric/rest.h", "", "fabric/rest.h:1: fabric is no room"),
        ("store/files.cc", '#include "files.h"\n', 'store/files.cc:1: includes "files.h", which is in no room'),
        ("fabric/protocol/link.h", '  # include "fabric/tcp/tls.h"\n', "link.h:1: fabric/protocol includes"),
        (
            "step/step.cc",
            "#include <Python.h>\n",
            "step/step.cc:1: includes <Python.h>, but only bindings knows Python",
        ),
    ],
)
def test_what_breaks_the_order_is_named_with_its_line(file, text, expected):
    (problem,) = include_order.problems({file: text})
    assert expected in problem
    assert "; " in problem  # what to do


def test_the_program_fails_with_the_file_and_the_line(tmp_path):
    native = tmp_path / "native"
    (native / "kernels").mkdir(parents=True)
    (native / "kernels" / "sum.cc").write_text('// Adds.\n#include "store/reader.h"\n')
    ended = subprocess.run([sys.executable, str(TOOL), str(native)], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stdout.startswith("native/kernels/sum.cc:2: kernels includes")


@pytest.mark.parametrize("header", ["mutex", "thread", "chrono", "atomic"])
def test_rooms_that_decide_have_no_lock_thread_or_clock(header):
    text = f"#pragma once\n\n#include <vector>\n#include <{header}>\n"
    assert include_order.problems({"pipeline/part.h": text}) == []
    (problem,) = include_order.problems({"step/part.h": text})
    assert problem.startswith(f"step/part.h:4: includes <{header}>, but step has no lock, thread or clock")
