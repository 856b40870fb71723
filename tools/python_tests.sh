#!/usr/bin/env bash
# Runs the Python tests in four processes, a file in one of them: many tests mostly wait for processes of their own.
# In the folders' order, so that the long files of tests/integration begin first and no process is left with one at the
# end. Their processes share what Python compiles, also where the environment asks for none to be left (images often do):
# a third of a second for each of hundreds.
set -euo pipefail
cd "$(dirname "$0")/.."

exec env --unset=PYTHONDONTWRITEBYTECODE .venv/bin/python -m pytest -q --numprocesses 4 --dist loadfile --no-loadscope-reorder --durations 30 "$@"
