#!/usr/bin/env bash
# Prepares a checkout for development: system packages (where this user may install them), .venv with the pinned Python
# packages, and LuWu itself, editable, with its native part built. Does only what is missing or has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/shared.sh

readonly ENVIRONMENT=.venv

missing_system_packages() {
    command -v c++ >/dev/null || echo g++
    [[ -e /usr/include/liburing.h ]] || echo liburing-dev
    [[ -e /usr/include/doctest/doctest.h ]] || echo doctest-dev
    [[ -e /usr/include/openssl/ssl.h ]] || echo libssl-dev
    command -v openssl >/dev/null || echo openssl # tests make certificates with it
    has_allocator || echo libtcmalloc-minimal4
    command -v ip >/dev/null || echo iproute2
    command -v clang >/dev/null || echo clang # compiles the XDP switch
    has_clang_runtime || clang_runtime_package
    command -v ccache >/dev/null || echo ccache
    [[ -e /usr/include/bpf/libbpf.h ]] || echo libbpf-dev
    find_python >/dev/null || printf '%s\n' python3-venv python3-dev
}

# libFuzzer and clang's sanitizers, of the clang that is here or, if there is none yet, of Debian 12's.
clang_runtime_package() { echo "libclang-rt-$(clang -dumpversion 2>/dev/null | grep -oE '^[0-9]+' || echo 14)-dev"; }
# Without -q, which would end before ldconfig has said all, and make that fail.
has_allocator() { ldconfig -p 2>/dev/null | grep libtcmalloc_minimal >/dev/null; }

say_what_is_still_missing() {
    [[ -e /usr/include/liburing.h ]] || say "without liburing-dev, a thread pool reads and writes the disk"
    [[ -e /usr/include/doctest/doctest.h ]] || say "without doctest-dev, the native unit tests are skipped"
    [[ -e /usr/include/openssl/ssl.h ]] || say "without libssl-dev, workers on other hosts connect without TLS"
    command -v ip >/dev/null || say "without iproute2, the tests that need a network of their own are skipped"
    [[ -e /usr/include/bpf/libbpf.h ]] && command -v clang >/dev/null ||
        say "without clang and libbpf-dev there is no switch inside the kernel (luwu switch --xdp), and its tests are skipped"
    has_allocator || say "without libtcmalloc-minimal4, workers take more memory and time"
    command -v c++ >/dev/null || fail "a C++20 compiler is needed: g++ 11, clang 14, or newer"
}

install_requirements() {
    say "installing requirements/development.txt: pip fetches about 0.5 GB, and some GB more where torch is a build for" \
        "CUDA; a minute or two with a fast network; it shows only errors"
    pip_install "$ENVIRONMENT" --no-compile -r requirements/development.txt
    say "compiling these Python packages to bytecode: up to a minute on two processors"
    # On all processors, which pip does not use; templates that are no Python are no matter.
    "$ENVIRONMENT/bin/python" -m compileall -qq --workers 0 "$ENVIRONMENT/lib" >/dev/null 2>&1 || true
}

# Without dependencies: they are all there, pinned, and pip must not move them.
build_package() {
    say "building LuWu: compiles its C++ part, up to 4 minutes on two processors the first time; fetches nothing"
    PATH="$PWD/$ENVIRONMENT/bin:$PATH" pip_install "$ENVIRONMENT" --no-build-isolation --no-deps \
        --config-settings=cmake.define.LUWU_WERROR=ON --config-settings=cmake.define.LUWU_LINES=ON --editable .
}

# What the built package depends on; that liburing, OpenSSL, libbpf or clang appeared or went is a reason to build again,
# too.
build_input() {
    hash_of pyproject.toml CMakeLists.txt cmake native benchmarks/native bpf requirements/development.txt
    [[ ! -e /usr/include/liburing.h ]] || echo "liburing"
    [[ ! -e /usr/include/openssl/ssl.h ]] || echo "openssl"
    [[ ! -e /usr/include/bpf/libbpf.h ]] || echo "libbpf $(command -v clang)"
}

take_turn
install_system_packages missing_system_packages
say_what_is_still_missing
compile_once
make_environment "$ENVIRONMENT"
once_for "$ENVIRONMENT" requirements "$(hash_of requirements/development.txt)" install_requirements
once_for "$ENVIRONMENT" build "$(build_input)" build_package
say "ready; next: source $ENVIRONMENT/bin/activate, then luwu doctor"
