#!/usr/bin/env bash
# Runs the tests of tests/clusters, each with a real engine of a cluster on this machine. Arguments are pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(tools/clusters.sh)
exec env LUWU_TEST_CLUSTERS=1 "$python" -m pytest -q --durations 10 tests/clusters "$@"
