"""First calls of MKL's vector functions, made one after the other.

On a CPU torch computes exp, log, tanh and others with the vector functions of MKL, which chooses the code of each at
its first call. Threads that call a function for the first time at once, such as those that share the elements of one
tensor, race for that choice: one of them may compute with code of a lower accuracy, in that call alone
(pytorch/pytorch issue 188792; MKL 2024.2, which torch's wheels hold). The same run then has other bits. A call with one
element makes the choice.
"""

from __future__ import annotations

import threading

import torch

FUNCTIONS = (
    torch.acos, torch.asin, torch.atan, torch.cos, torch.cosh, torch.erf, torch.erfc, torch.erfinv, torch.exp,
    torch.expm1, torch.log, torch.log10, torch.log1p, torch.log2, torch.sin, torch.sinh, torch.sqrt, torch.tan,
    torch.tanh, torch.trunc,
)  # fmt: skip
"""Functions that a version of torch computes with MKL (aten/src/ATen/cpu/vml.h), for float32 and float64."""

_lock = threading.Lock()
_chosen = False


def choose_vector_functions() -> None:
    """Make the first call of each vector function, once in a process; other threads wait. It takes about 15 ms."""
    global _chosen
    with _lock:
        if _chosen or not torch.backends.mkl.is_available():
            return
        for dtype in (torch.float32, torch.float64):
            half = torch.full((1,), 0.5, dtype=dtype, device="cpu")
            for function in FUNCTIONS:
                function(half)
        _chosen = True
