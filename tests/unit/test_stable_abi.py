"""The native module uses only Python functions that the stable ABI has: one wheel serves Python 3.12 and later.

CI builds for Python 3.11, where the module is not limited to them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

BINDINGS = Path(__file__).parents[2] / "native/bindings"


def compile_in_stable_abi(names, folder):
    """Ask the compiler for the addresses of functions with Python's limited headers; return what it said."""
    uses = "".join(f"auto* use_{name} = &{name};\n" for name in sorted(names))
    source = folder / "uses.cc"
    source.write_text(f"#define Py_LIMITED_API 0x030C0000\n#include <Python.h>\n{uses}")
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{sysconfig.get_path('include')}", source]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_bindings_call_only_functions_of_the_stable_abi(tmp_path):
    texts = [path.read_text() for path in sorted(BINDINGS.glob("*.*"))]
    names = {name for text in texts for name in re.findall(r"\b(Py[A-Z]\w*_\w+)\s*\(", text)}
    assert "PyEval_SaveThread" in names
    ended = compile_in_stable_abi(names, tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_a_function_that_is_not_in_it_is_found(tmp_path):
    ended = compile_in_stable_abi({"PyGILState_Check"}, tmp_path)
    assert "PyGILState_Check" in ended.stderr and ended.returncode != 0
