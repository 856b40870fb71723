"""The acceptance program for GPUs, as far as it runs without one: its comparisons train on the simulated device."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.simulated_device import LIBRARY, compute_on_device, the_twin

FOLDER = Path(__file__).parents[2] / "benchmarks/gpu"
MODULES = ("accept", "beside", "copies", "depth", "llama", "machine", "parity", "step_time", "timing")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The program's modules, by name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


def test_without_a_gpu_it_says_so(tmp_path):
    ended = subprocess.run(
        [sys.executable, FOLDER / "accept.py", "--smoke"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: run benchmarks/gpu/accept.py itself")
    assert ended.returncode == 2
    assert ended.stderr == "accept: expected a GPU that torch can use, found none; run this where there is one\n"


def test_every_part_has_a_module_and_a_deadline(parts):
    for part in parts["accept"].PARTS:
        assert callable(parts[part.name].measure)
        assert 0 < part.smoke_seconds <= part.full_seconds <= 600


def test_a_part_that_fails_is_reported_and_the_others_run(parts, tmp_path):
    accept = parts["accept"]
    chosen = [part for part in accept.PARTS if part.name in ("machine", "copies")]
    if torch.cuda.is_available():
        pytest.skip("these parts work where there is a GPU")
    assert accept.accept(chosen, smoke=True, folder=tmp_path, out=tmp_path / "out.json") is False
    written = (tmp_path / "out.json").read_text()
    assert written.count('"ok": false') == 2 and "Traceback" in written


@pytest.mark.skipif(not LIBRARY.exists(), reason="the native tests are not built: run make test")
def test_the_comparison_with_torch_is_right_on_a_simulated_device(parts, tmp_path, monkeypatch):
    parity, llama = parts["parity"], parts["llama"]
    monkeypatch.setattr(parity, "DEVICE", "cpu")
    monkeypatch.setattr(parity, "SMALL", llama.Shape(layers=2, hidden=32, inner=48, heads=2, vocabulary=64))
    monkeypatch.setattr(parity, "TOKENS", 16)
    compute_on_device(monkeypatch)
    for name, (run, expected, tolerance) in parity.variants(tmp_path, 4).items():
        if name in ("offload host", "float16"):  # pinned memory and autocast are a GPU's
            continue
        losses = run()
        assert losses == run(), name
        assert losses == pytest.approx(expected, rel=tolerance), name
    assert the_twin().findings() == []
