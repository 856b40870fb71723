#!/usr/bin/env bash
# Runs the Python tests: those of parts beside those with processes and networks of their own, which mostly wait.
set -euo pipefail
cd "$(dirname "$0")/.."

units=$(mktemp)
trap 'rm -f "$units"' EXIT
.venv/bin/python -m pytest -q tests/unit >"$units" 2>&1 &
running=$!
status=0
.venv/bin/python -m pytest -q tests/integration || status=$?
wait "$running" || status=$?
cat "$units"
exit "$status"
