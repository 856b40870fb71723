#!/usr/bin/env bash
# Runs the Python tests with the oldest torch that pyproject.toml allows, in the place of .venv's. It is put into
# build/oldest-torch alone; pip fetches its CUDA libraries too, some gigabytes. Arguments are pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/shared.sh

version=$(sed -nE 's/^ *"torch>=([0-9.]+),.*$/\1/p' pyproject.toml)
folder=build/oldest-torch
[[ -d $folder/torch ]] || .venv/bin/pip install --quiet --target "$folder" "torch==$version.*"
export PYTHONPATH="$PWD/$folder"
say "tests with torch $(.venv/bin/python -c 'import torch; print(torch.__version__)')"
exec tools/python_tests.sh "$@"
