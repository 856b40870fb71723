#!/usr/bin/env bash
# Builds wheels for Linux with glibc 2.28 or later into dist/, and checks them with auditwheel.
#
# usage: tools/wheels.sh [x86_64 | aarch64]     (default: x86_64)
#
# One wheel serves Python 3.12 and later (the stable ABI). For x86_64 there is another for each earlier Python that
# PYTHONS names (default: python3.10 python3.11, those that are found). liburing and OpenSSL are linked in; they come from
# Debian's packages, which need no root to fetch. The XDP switch is left out: Debian's static libbpf and libelf cannot be
# linked into a module. Another architecture is cross-compiled: its Python is not run, so
# the type stub is that of this machine's build.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly ARCHITECTURE=${1:-x86_64}
readonly GLIBC=2.28
readonly BUILD=$PWD/build/wheels
readonly DEPENDENCIES=$BUILD/$ARCHITECTURE
readonly TOOLS=$BUILD/tools
readonly PACKAGES=(liburing-dev libssl-dev)

case $ARCHITECTURE in
    x86_64) DEBIAN=amd64 ;;
    aarch64) DEBIAN=arm64 ;;
    *) echo "wheels: expected x86_64 or aarch64, found $ARCHITECTURE" >&2; exit 2 ;;
esac

# fetch_dependencies: headers and static libraries of Debian's packages, in include/ and lib/.
fetch_dependencies() {
    [ -e "$DEPENDENCIES/complete" ] && return
    local state=$DEPENDENCIES/apt root=$DEPENDENCIES/root
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$root" "$DEPENDENCIES"/{include,lib}
    local options=(-qq -o "APT::Architecture=$DEBIAN" -o "APT::Architectures=$DEBIAN" -o "Dir::State::lists=$state/lists"
        -o "Dir::Cache=$state/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    (cd "$state" && apt-get "${options[@]}" download "${PACKAGES[@]}")
    local package
    for package in "$state"/*.deb; do
        dpkg --extract "$package" "$root"
    done
    local triple=$ARCHITECTURE-linux-gnu
    cp -r "$root"/usr/include/{openssl,liburing,liburing.h} "$DEPENDENCIES/include"
    cp -r "$root/usr/include/$triple/openssl/." "$DEPENDENCIES/include/openssl"
    cp "$root/usr/lib/$triple"/{liburing,libssl,libcrypto}.a "$DEPENDENCIES/lib"
    touch "$DEPENDENCIES/complete"
}

# make_compilers: programs cc and c++ for the architecture and an old C library.
make_compilers() {
    if [ ! -x "$TOOLS/bin/auditwheel" ]; then
        python3 -m venv "$TOOLS"
        "$TOOLS/bin/pip" install --quiet --requirement requirements/wheels.txt
    fi
    local name
    for name in cc c++; do
        printf '#!/bin/sh\nexec %q -m ziglang %s -target %s-linux-gnu.%s "$@"\n' \
            "$TOOLS/bin/python" "$name" "$ARCHITECTURE" "$GLIBC" > "$DEPENDENCIES/$name"
        chmod +x "$DEPENDENCIES/$name"
    done
}

# build_wheel PYTHON: a wheel into $BUILD/new. nanobind uses stderr without its header, which g++'s library brings anyway.
build_wheel() {
    local lib=$DEPENDENCIES/lib
    CC=$DEPENDENCIES/cc CXX=$DEPENDENCIES/c++ CXXFLAGS="-include cstdio" "$1" -m pip wheel . --quiet --no-deps --wheel-dir "$BUILD/new" \
        --config-settings "build-dir=$BUILD/{wheel_tag}" \
        --config-settings cmake.define.OPENSSL_USE_STATIC_LIBS=ON \
        --config-settings "cmake.define.OPENSSL_ROOT_DIR=$DEPENDENCIES" \
        --config-settings "cmake.define.OPENSSL_INCLUDE_DIR=$DEPENDENCIES/include" \
        --config-settings "cmake.define.OPENSSL_SSL_LIBRARY=$lib/libssl.a" \
        --config-settings "cmake.define.OPENSSL_CRYPTO_LIBRARY=$lib/libcrypto.a" \
        --config-settings "cmake.define.URING_INCLUDE_DIR=$DEPENDENCIES/include" \
        --config-settings "cmake.define.URING_STATIC_LIBRARY=$lib/liburing.a" \
        --config-settings cmake.define.LUWU_XDP=OFF
}

fetch_dependencies
make_compilers
rm -rf "$BUILD/new"
for python in ${PYTHONS:-python3.10 python3.11 python3.12}; do
    if command -v "$python" > /dev/null; then
        build_wheel "$python"
    else
        echo "wheels: $python is not installed: its wheel is left out" >&2
    fi
done
PATH=$TOOLS/bin:$PATH "$TOOLS/bin/auditwheel" repair --plat "manylinux_${GLIBC/./_}_$ARCHITECTURE" --wheel-dir dist "$BUILD"/new/*.whl
ls -l dist
