#!/usr/bin/env bash
# Tests the wheel for aarch64 on this machine, in a Debian for arm64 whose programs qemu-user runs. Needs tools/wheels.sh
# aarch64, qemu-user-static and Linux 6.7 or later, and no root.
#
# usage: tools/aarch64_tests.sh [native | module | train]...     (default: all three)
#
#   native   unit tests of the native part that depend on the processor: arithmetic, formats, locks
#   module   the wheel's module, imported, and the Python tests that use it without torch
#   train    `luwu train` of a tiny model, with the oldest torch (2.10): its wheel for aarch64 is the last without CUDA
#
# Debian's packages are unpacked and not installed; uv installs Python's for the other architecture. The kernel starts qemu
# for programs of that architecture in a user namespace of the tests alone: nothing of this machine's settings changes.
# qemu-user has no io_uring, so the store's thread pool does the disk's work.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/shared.sh
source tools/cross.sh

readonly FOLDER=$PWD/build/aarch64
readonly ROOT=$FOLDER/root
readonly NATIVE=$FOLDER/native
readonly RELEASE=trixie PYTHON=3.13
readonly EMULATOR=/usr/bin/qemu-aarch64-static
# Tests of the kernel's network, rings and files, of many threads and of time are left out: there the emulator would be
# tested. So are those of TLS, which take many minutes there.
readonly FILES=(portable_bits kernels optimizers crc32c fixed_point fixed_sums state_codes weighted_sum packets
    store store_values commits snapshots step_machine record_queue pipeline)

# unpack_debian: Python, OpenSSL's program and their libraries, in ROOT.
unpack_debian() {
    [[ -e $ROOT/complete ]] && return
    local source=$FOLDER/$RELEASE.list package name
    rm -rf "$ROOT"
    mkdir -p "$ROOT"/{dev,proc,root,tmp,usr/bin,usr/lib,usr/sbin}
    for name in bin lib sbin; do ln -s "usr/$name" "$ROOT/$name"; done
    echo "deb http://deb.debian.org/debian $RELEASE main" >"$source"
    download_packages "$FOLDER/apt" -o "Dir::Etc::SourceList=$source" -o Dir::Etc::SourceParts=/dev/null -- \
        "python$PYTHON" openssl libstdc++6 dash coreutils
    for package in "$FOLDER"/apt/archives/*.deb; do
        dpkg --extract "$package" "$ROOT"
    done
    ln -sf dash "$ROOT/usr/bin/sh" # some releases of the package bring it
    touch "$ROOT/complete"
}

# install_packages: the wheel, what it needs and pytest, in ROOT/site. Wheels alone: this machine cannot compile the others.
install_packages() {
    grep -v '^torch==' requirements/development.txt >"$FOLDER/constraints.txt"
    UV_CACHE_DIR=$FOLDER/uv "$TOOLS/bin/uv" pip install --quiet --target "$ROOT/site" --python-version "$PYTHON" \
        --python-platform aarch64-manylinux_2_28 --only-binary :all: --constraint "$FOLDER/constraints.txt" \
        --reinstall-package luwu "$WHEEL" 'torch==2.10.*' pytest pytest-timeout
}

# inside COMMAND...: runs it in ROOT, with this checkout at its own path.
inside() {
    # ELF of 64 bits, little-endian, executable or shared, for machine 0xb7. F opens the emulator before the chroot.
    local magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    mkdir -p "$ROOT$PWD"
    unshare --user --map-root-user --mount --pid --fork --mount-proc sh -ec '
        rule=$1 root=$2 checkout=$3
        shift 3
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
        printf %s "$rule" >/proc/sys/fs/binfmt_misc/register
        mount --rbind /dev "$root/dev"
        mount -t proc proc "$root/proc"
        mount -t tmpfs tmpfs "$root/dev/shm"
        mount --rbind "$checkout" "$root$checkout"
        exec env --ignore-environment HOME=/root PATH=/usr/bin:/usr/sbin PYTHONPATH=/site LANG=C.UTF-8 chroot "$root" "$@"
    ' inside ":qemu-aarch64:M::$magic:$mask:$EMULATOR:F" "$ROOT" "$PWD" "$@"
}

# doctest alone of /usr/include: the rest is this machine's.
build_native_tests() {
    local arguments=() definition
    mkdir -p "$FOLDER/include"
    ln -sfn /usr/include/doctest "$FOLDER/include/doctest"
    while read -r definition; do
        arguments+=("-D$definition")
    done < <(cross_definitions)
    "$PWD/.venv/bin/cmake" -S . -B "$NATIVE" -G Ninja --log-level=WARNING -DCMAKE_MAKE_PROGRAM="$PWD/.venv/bin/ninja" \
        -DCMAKE_BUILD_TYPE=Release -DLUWU_BUILD_TESTS=ON \
        "-DDOCTEST_INCLUDE_DIR=$FOLDER/include" "${arguments[@]}" >/dev/null
    "$PWD/.venv/bin/cmake" --build "$NATIVE" --target luwu_native_tests -- --quiet
}

test_native() {
    build_native_tests
    inside "$NATIVE/tests/native/luwu_native_tests" "--source-file=$(printf '*/test_%s.cc,' "${FILES[@]}")"
}

test_module() {
    install_packages
    inside "python$PYTHON" -c 'import numpy
from luwu.core.native import crc32c, instruction_set, io_backend
found = instruction_set(), io_backend(), crc32c(numpy.frombuffer(b"123456789", "u1"))
assert found == ("neon", "threads", 0xE3069283), found'
    # Without tests/conftest.py, which imports torch in another process: minutes, here.
    inside "python$PYTHON" -m pytest -q -p no:cacheprovider --noconftest --timeout 0 \
        "$PWD"/tests/unit/test_{division,plan_simulation,store_manifest}.py
}

test_train() {
    install_packages
    rm -rf "$ROOT/root/run"
    inside "python$PYTHON" -m luwu.cli train --run /root/run --data "$PWD/docs/decisions" \
        --layers 1 --hidden 32 --heads 2 --seq 32 --batch 4 --steps 3 --workers 1
}

use_architecture aarch64
wheels=(dist/luwu-*-cp312-abi3-*aarch64.whl)
readonly WHEEL=$PWD/${wheels[0]}
[[ -e $WHEEL ]] || fail "there is no wheel for aarch64: make wheels ARCHITECTURE=aarch64"
[[ -x $EMULATOR ]] || fail "$EMULATOR is missing: apt-get install qemu-user-static"
fetch_dependencies
make_compilers
unpack_debian
[[ $# -gt 0 ]] || set -- native module train
for part in "$@"; do
    say "$part"
    "test_$part"
done
