#!/usr/bin/env bash
# Prepares the environment of the benchmarks' peers (torch, DeepSpeed with its operators compiled) in build/peers, apart
# from .venv, and prints the path of its Python. Does only what is missing or has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/shared.sh

readonly ENVIRONMENT=build/peers
readonly COMPILE_LOG=$STATE/deepspeed.log
readonly COMPILE='
from deepspeed.accelerator import get_accelerator

for name in ("AsyncIOBuilder", "CPUAdamBuilder", "ShareMemCommBuilder"):
    builder = get_accelerator().create_op_builder(name)
    if builder is None or not builder.is_compatible(verbose=True):
        raise SystemExit(f"DeepSpeed cannot build {name} here")
    builder.load(verbose=False)
'

missing_peer_packages() {
    command -v c++ >/dev/null || echo g++
    [[ -e /usr/include/libaio.h ]] || echo libaio-dev
    command -v fio >/dev/null || echo fio
    find_python >/dev/null || printf '%s\n' python3-venv python3-dev
}

# torch first: DeepSpeed's own installation imports it, hence no build isolation.
install_peers() {
    say "installing requirements/peers.txt (takes minutes the first time)"
    pip_install "$ENVIRONMENT" $(sed -nE 's/^((torch|setuptools|ninja|py-cpuinfo)==.*)$/\1/p' requirements/peers.txt) wheel
    pip_install "$ENVIRONMENT" --no-build-isolation -r requirements/peers.txt
}

# DeepSpeed compiles at first use otherwise, and would look for CUDA unless told that this is a CPU.
compile_operators() {
    say "compiling DeepSpeed's operators (about five minutes, once)"
    # A compilation that was killed leaves its lock, and the next one would wait for it without end.
    rm -f "$ENVIRONMENT"/torch_extensions/*/lock
    DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR="$PWD/$ENVIRONMENT/torch_extensions" PATH="$PWD/$ENVIRONMENT/bin:$PATH" \
        "$ENVIRONMENT/bin/python" -c "$COMPILE" >"$COMPILE_LOG" 2>&1 ||
        fail "DeepSpeed's operators do not compile: see $COMPILE_LOG"
}

take_turn
install_system_packages missing_peer_packages
make_environment "$ENVIRONMENT"
once_for "$ENVIRONMENT" requirements "$(hash_of requirements/peers.txt)" install_peers
once_for "$ENVIRONMENT" operators "$(hash_of requirements/peers.txt)" compile_operators
echo "$PWD/$ENVIRONMENT/bin/python"
