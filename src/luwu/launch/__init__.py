"""Start and watch the processes of a run on this machine; only the worker processes import torch."""
