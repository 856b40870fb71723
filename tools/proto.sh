#!/usr/bin/env bash
# Writes the Python modules of the control plane's messages from control.proto, into the folder named (default: src).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TARGET=${1:-src}
.venv/bin/python -m grpc_tools.protoc -Isrc --python_out="$TARGET" --pyi_out="$TARGET" --grpc_python_out="$TARGET" \
    luwu/control/control.proto
