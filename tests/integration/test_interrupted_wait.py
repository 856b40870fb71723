"""Ctrl-C while a thread that is not the main one waits for a server, as a backward on a GPU does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulated_device import LIBRARY

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
