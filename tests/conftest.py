"""Settings that all tests share."""

from __future__ import annotations

import os

# Tests start several processes on few cores: one thread each, set before torch is imported here or in a child.
os.environ.setdefault("OMP_NUM_THREADS", "1")
