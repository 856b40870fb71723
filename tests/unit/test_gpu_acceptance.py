"""The acceptance program for GPUs, as far as it runs without one: its comparisons train on the simulated device."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.simulated_device import LIBRARY, compute_on_device, the_twin

from harness.warm import start_program

FOLDER = Path(__file__).parents[2] / "benchmarks/gpu"
PARTS = ("adapters", "beside", "copies", "depth", "disk", "machine", "parity", "peers", "step_time")
MODULES = ("accept", *PARTS, "llama", "timing")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The program's modules, by name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


def test_without_a_gpu_it_says_so(tmp_path):
    command = [sys.executable, str(FOLDER / "accept.py"), "--smoke"]
    process = start_program(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    _, errors = process.communicate()
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: run benchmarks/gpu/accept.py itself")
    assert process.returncode == 2
    assert errors == "accept: expected a GPU that torch can use, found none; run this where there is one\n"


def test_every_part_has_a_module_and_a_deadline(parts):
    assert sorted(part.name for part in parts["accept"].PARTS) == list(PARTS)
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


def test_what_a_part_had_measured_when_its_deadline_ended_it_is_kept(parts, tmp_path, monkeypatch):
    accept = parts["accept"]
    program = tmp_path / "accept.py"
    program.write_text(
        "import json, time\nprint('no figures', flush=True)\nprint(json.dumps({'peaks': {'4': 1}}), flush=True)\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(accept, "HERE", tmp_path)
    part = accept.Part("depth", "none", smoke_seconds=3, full_seconds=3)
    found = accept.run_part(part, smoke=True, folder=tmp_path)
    assert (found["ok"], found["error"], found["peaks"]) == (False, "took longer than 3 s", {"4": 1})


@pytest.fixture
def small_parts(parts, monkeypatch) -> dict[str, ModuleType]:
    """The parts that train, with a small model, on the simulated device."""
    shape = parts["llama"].Shape(layers=4, hidden=128, inner=192, heads=2, vocabulary=256)
    for name in ("adapters", "disk", "peers", "step_time"):
        monkeypatch.setattr(parts[name], "SMOKE", shape)
        monkeypatch.setattr(parts[name], "LENGTH", 16)
        monkeypatch.setattr(parts[name], "DEVICE", "cpu")
    monkeypatch.setattr(parts["depth"], "shape_of", lambda layers: replace(shape, layers=layers))
    monkeypatch.setattr(parts["depth"], "TOKENS", 16)
    monkeypatch.setattr(parts["depth"], "DEVICE", "cpu")
    monkeypatch.setattr(parts["disk"], "memory_for", lambda _: 16 << 20)
    monkeypatch.setattr(parts["peers"], "BACKENDS", "gloo")
    monkeypatch.setattr(parts["peers"], "OFFLOAD", parts["peers"].OffloadPolicy())
    monkeypatch.setattr(parts["step_time"], "product_rate", lambda: 1e12)
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    compute_on_device(monkeypatch)
    return parts


@pytest.mark.skipif(not LIBRARY.exists(), reason="the native tests are not built: run make test")
@pytest.mark.parametrize("name", ["adapters", "depth", "disk", "peers", "step_time"])
def test_the_parts_that_train_run_on_a_simulated_device(small_parts, tmp_path, name):
    found = small_parts[name].measure(smoke=True, folder=tmp_path)
    assert found["ok"] is None
    assert json.loads(json.dumps(found))
    assert the_twin().findings() == []
    if name == "depth":
        tokens = small_parts["depth"].ROWS * 16
        held = {layers: peak + layers * tokens * 128 * 2 for layers, peak in found["peaks"].items()}
        assert held[4] == held[8] > 0  # what native code has on the device does not grow with depth
