"""Measures this machine, its disk, its links and a model's kernels once, for `luwu doctor` and `luwu plan`."""
