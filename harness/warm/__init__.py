"""Python programs as forks of one process that has imported what they need: each is there in milliseconds."""

from harness.warm.processes import ADDRESS, LUWU_MODULES, serve_warm, start_program

__all__ = ["ADDRESS", "LUWU_MODULES", "serve_warm", "start_program"]
