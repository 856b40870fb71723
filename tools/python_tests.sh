#!/usr/bin/env bash
# Runs the Python tests in three processes, a file in one of them: many tests mostly wait for processes of their own.
# In the folders' order, so that the long files of tests/integration begin first and no process is left with one at the
# end.
set -euo pipefail
cd "$(dirname "$0")/.."

exec .venv/bin/python -m pytest -q --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 30 "$@"
