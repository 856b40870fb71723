#!/usr/bin/env bash
# Runs the Python tests in three processes, a file in one of them: many tests mostly wait for processes of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

exec .venv/bin/python -m pytest -q --numprocesses 3 --dist loadfile "$@"
