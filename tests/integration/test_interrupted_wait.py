"""Ctrl-C while another thread than the main one waits for a server, as a backward on a GPU does, or a step begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.integration.test_network import equal
from tests.simulated_device import LIBRARY

import luwu
from luwu.worker.server_attempt import HyperParameters, ServerAttempt

ROOT = Path(__file__).parents[2]

WAITS = """
import ctypes, os, signal, sys, threading, time
import numpy as np
from luwu import _native
from luwu.errors import ServerError

class Stalled:
    def pull(self, block, alone):
        return 1
    def wait(self, handle):
        threading.Event().wait()
    def release(self, block):
        pass

libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
signal.signal(signal.SIGINT, signal.default_int_handler)

def handler():
    action = ctypes.create_string_buffer(256)
    libc.sigaction(signal.SIGINT, None, action)
    return action.raw[:8]

pythons = handler()
memory = [np.zeros(4096, np.uint8) for _ in range(2)]
engine = _native.CopyEngine(Stalled(), sys.argv[1], 0, [4096], *memory, 3, [], print)
engine.request(0, False)
ended = []

def backward():
    try:
        engine.take(0, 0)
    except ServerError as error:
        ended.append(str(error))
    libc.pthread_mutex_unlock(mutex)

def interrupt():
    while handler() == pythons:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

libc.pthread_mutex_lock(mutex)
for work in (backward, interrupt):
    threading.Thread(target=work).start()
try:
    libc.pthread_mutex_lock(mutex)  # as torch waits for its thread: signals do not end it
    for _ in range(100):
        pass
    print("no signal", flush=True)
except KeyboardInterrupt:
    print("interrupted", ended, handler() == pythons, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not LIBRARY.exists(), reason="the native tests are not built: run make test")
def test_ctrl_c_ends_a_wait_in_another_thread():
    ended = subprocess.run(
        [sys.executable, "-c", WAITS, LIBRARY], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stderr == ""
    assert ended.stdout == "interrupted ['interrupted while it waited for the server'] True\n"


def test_ctrl_c_while_a_step_begins_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ServerAttempt.begin
    interrupts = iter([False, True, True, False, False])

    def begin_and_interrupt(self: ServerAttempt, hyper_parameters: list[HyperParameters]) -> None:
        begin(self, hyper_parameters)
        if next(interrupts):  # before anything notes that the server has answered
            raise KeyboardInterrupt

    def train(run: Path) -> int:
        torch.manual_seed(0)
        model, interrupted = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)), 0
        with luwu.open(run, memory=64 << 20) as session:
            luwu.parallelize(model, session)
            optimizer = luwu.AdamW(model, lr=1e-2)
            while session.step < 3:
                try:
                    model(torch.ones(2, 8)).square().mean().backward()
                except KeyboardInterrupt:
                    interrupted += 1
                else:
                    optimizer.step()
        return interrupted

    assert train(tmp_path / "undisturbed") == 0
    monkeypatch.setattr(ServerAttempt, "begin", begin_and_interrupt)
    assert train(tmp_path / "interrupted") == 2
    assert equal(tmp_path / "undisturbed" / "store", tmp_path / "interrupted" / "store")
