#!/usr/bin/env bash
# Builds wheels for Linux with glibc 2.28 or later into dist/, and checks them with auditwheel.
#
# usage: tools/wheels.sh [x86_64 | aarch64]     (default: this machine's)
#
# One wheel serves Python 3.12 and later (the stable ABI), and there is another for each earlier Python. PYTHONS names the
# interpreters (default: python3.10 python3.11 python3.12, those that run). liburing and OpenSSL are linked in; they
# come from Debian's packages, which need no root to fetch. The XDP switch is left out.
#
# Another architecture's module is compiled with the headers of this machine's Python, and not imported: its type stub is
# that of this machine's wheel, which has to be in dist/ already.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/shared.sh
source tools/cross.sh

# tag_of PYTHON: cp310, cp311, or cp312 for all later ones
tag_of() { "$1" -c 'import sys; print(f"cp3{min(sys.version_info[1], 12)}")'; }

# stub_for PYTHON: the type stub of this machine's wheel for that Python.
stub_for() {
    local wheels=(dist/luwu-*-"$(tag_of "$1")"-*"$(uname -m).whl") stub=$DEPENDENCIES/_native.pyi
    [[ -e ${wheels[0]} ]] || fail "the type stub comes from this machine's wheel for $1: tools/wheels.sh $(uname -m) first"
    unzip -p "${wheels[0]}" luwu/_native.pyi >"$stub"
    echo "$stub"
}

# build_wheel PYTHON: a wheel into $DEPENDENCIES/new.
build_wheel() {
    local settings=("build-dir=$DEPENDENCIES/{wheel_tag}") definition stub tag arguments=()
    tag=$(tag_of "$1")
    while read -r definition; do
        settings+=("cmake.define.$definition")
    done < <(cross_definitions)
    if [[ $ARCHITECTURE != "$(uname -m)" ]]; then
        stub=$(stub_for "$1")
        settings+=("cmake.define.LUWU_STUB=$stub" "env._PYTHON_HOST_PLATFORM=linux-$ARCHITECTURE")
        [[ $tag == cp312 ]] || settings+=("env.SETUPTOOLS_EXT_SUFFIX=.cpython-${tag#cp}-$ARCHITECTURE-linux-gnu.so")
    fi
    for definition in "${settings[@]}"; do
        arguments+=(--config-settings "$definition")
    done
    "$1" -m pip wheel . --quiet --no-deps --wheel-dir "$DEPENDENCIES/new" "${arguments[@]}"
}

use_architecture "${1:-$(uname -m)}"
fetch_dependencies
make_compilers
rm -rf "$DEPENDENCIES/new"
for python in ${PYTHONS:-python3.10 python3.11 python3.12}; do
    # Version managers put names into PATH whose Python is not chosen: to be found is not to run.
    if "$python" --version &>/dev/null; then
        build_wheel "$python"
    else
        say "$python does not run: its wheel is left out"
    fi
done
# auditwheel names the oldest system that a wheel runs on; as an argument it takes those of this machine's architecture alone.
rm -rf "$DEPENDENCIES/repaired"
PATH=$TOOLS/bin:$PATH "$TOOLS/bin/auditwheel" repair --plat auto --wheel-dir "$DEPENDENCIES/repaired" "$DEPENDENCIES"/new/*.whl
for wheel in "$DEPENDENCIES"/repaired/*.whl; do
    [[ $wheel =~ manylinux_2_([0-9]+)_$ARCHITECTURE\.whl$ ]] && ((BASH_REMATCH[1] <= ${GLIBC#2.})) ||
        fail "expected a wheel for glibc $GLIBC or earlier, found $(basename "$wheel")"
done
mkdir -p dist
mv "$DEPENDENCIES"/repaired/*.whl dist
ls -l dist
