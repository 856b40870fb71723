#!/usr/bin/env bash
# Builds the native unit tests in build/NAME, with the given sanitizers if any, and runs them.
# The Python module is not built with sanitizers: that needs their run-time library preloaded into an interpreter that
# they do not know, and torch beside it, which reports leaks and races of its own.
# With FILES (test_FILE.cc), runs those alone, one after the other and for as long as they take.
# usage: tools/native_tests.sh NAME [SANITIZERS [FILES...]]
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/shared.sh

name=$1
sanitizers=${2:-}
files=("${@:3}")
# clang compiles instrumented code in two thirds of g++'s time, and its tests under ThreadSanitizer take three quarters.
if [[ -n $sanitizers ]] && has_clang_runtime; then export CXX=${CXX:-clang++}; fi
compile_once

folder=build/$name
export PATH="$PWD/.venv/bin:$PATH"

if [[ ! -e /usr/include/doctest/doctest.h ]]; then
    echo "SKIPPED native tests ($name): doctest is not installed (apt-get install doctest-dev)" >&2
    exit 0
fi

build_type=Release
warnings_are_errors=ON
lines=ON # as the Python module has them, so that the core is compiled once for both
if [[ -n $sanitizers ]]; then
    build_type=RelWithDebInfo
    lines=OFF
    warnings_are_errors=OFF # instrumented code makes compilers warn about what is not there
fi
# Instrumented code compiles in two thirds of the time with less optimisation, and its tests hardly take longer.
sanitized_flags="-O1 -g1 -DNDEBUG"
cmake -S . -B "$folder" -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE=$build_type -DLUWU_BUILD_TESTS=ON \
    -DLUWU_WERROR=$warnings_are_errors -DLUWU_LINES=$lines -DLUWU_SANITIZE="$sanitizers" \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="$sanitized_flags" >/dev/null
env --unset=MAKEFLAGS cmake --build "$folder" -- --quiet # or ninja looks for the jobs of a make above it

# ThreadSanitizer maps its shadow at fixed addresses, which strong address randomisation may have taken.
run=()
if [[ $sanitizers == thread ]] && setarch "$(uname -m)" --addr-no-randomize true 2>/dev/null; then
    run=(setarch "$(uname -m)" --addr-no-randomize)
fi
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tests/native/tsan.suppressions
if ((${#files[@]})); then
    cd "$folder"
    for file in "${files[@]}"; do
        "${run[@]}" tests/native/luwu_native_tests --source-file="*/test_$file.cc" --duration=true --no-intro=true
    done
    exit
fi
# One more at a time than there are processors, because some wait more than they compute.
"${run[@]}" ctest --test-dir "$folder" --output-on-failure --no-tests=error --parallel "$(($(nproc) + 1))"
