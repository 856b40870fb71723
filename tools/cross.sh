# shellcheck shell=bash
# What wheels.sh and aarch64_tests.sh share: compilers and static libraries for an architecture and an old C library.

readonly GLIBC=2.28
readonly BUILD=$PWD/build/wheels
readonly TOOLS=$BUILD/tools

# use_architecture x86_64 | aarch64: sets ARCHITECTURE, DEBIAN (Debian's name for it) and DEPENDENCIES (a folder).
use_architecture() {
    ARCHITECTURE=$1
    DEPENDENCIES=$BUILD/$ARCHITECTURE
    case $ARCHITECTURE in
        x86_64) DEBIAN=amd64 ;;
        aarch64) DEBIAN=arm64 ;;
        *)
            say "expected x86_64 or aarch64, found $ARCHITECTURE"
            exit 2
            ;;
    esac
}

# download_packages FOLDER OPTION... -- PACKAGE...: Debian's packages and what they depend on, as files in FOLDER. Needs
# no root. The options are apt-get's.
download_packages() {
    local state=$1 options=()
    shift
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    mkdir -p "$state/lists/partial" "$state/archives/partial"
    options+=(-qq -o "APT::Architecture=$DEBIAN" -o "APT::Architectures=$DEBIAN" -o "Dir::State::lists=$state/lists"
        -o "Dir::Cache=$state" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root -o Debug::NoLocking=1)
    apt-get "${options[@]}" update
    apt-get "${options[@]}" install --yes --no-install-recommends --download-only "$@"
}

# fetch_dependencies: headers and static libraries of liburing and OpenSSL, in include/ and lib/.
fetch_dependencies() {
    [[ -e $DEPENDENCIES/complete ]] && return
    local root=$DEPENDENCIES/root triple=$ARCHITECTURE-linux-gnu package
    rm -rf "$DEPENDENCIES"
    mkdir -p "$root" "$DEPENDENCIES"/{include,lib}
    download_packages "$DEPENDENCIES/apt" -- liburing-dev libssl-dev
    for package in "$DEPENDENCIES"/apt/archives/{liburing,libssl}-dev_*.deb; do
        dpkg --extract "$package" "$root"
    done
    cp -r "$root"/usr/include/{openssl,liburing,liburing.h} "$DEPENDENCIES/include"
    cp -r "$root/usr/include/$triple/openssl/." "$DEPENDENCIES/include/openssl"
    cp "$root/usr/lib/$triple"/{liburing,libssl,libcrypto}.a "$DEPENDENCIES/lib"
    touch "$DEPENDENCIES/complete"
}

# make_compilers: programs cc and c++ in DEPENDENCIES.
make_compilers() {
    if [[ ! -e $TOOLS/complete || $(<"$TOOLS/complete") != "$(<requirements/wheels.txt)" ]]; then
        python3 -m venv "$TOOLS"
        "$TOOLS/bin/pip" install --quiet --requirement requirements/wheels.txt
        cp requirements/wheels.txt "$TOOLS/complete"
    fi
    local name
    for name in cc c++; do
        printf '#!/bin/sh\nexec %q -m ziglang %s -target %s-linux-gnu.%s "$@"\n' \
            "$TOOLS/bin/python" "$name" "$ARCHITECTURE" "$GLIBC" >"$DEPENDENCIES/$name"
        chmod +x "$DEPENDENCIES/$name"
    done
    export CC=$DEPENDENCIES/cc CXX=$DEPENDENCIES/c++
    compile_once # the core is the same for every Python and for the native tests
    export CCACHE_COMPILERTYPE=clang CCACHE_COMPILERCHECK="string:$(<requirements/wheels.txt) $ARCHITECTURE $GLIBC"
    export CXXFLAGS="-include cstdio" # nanobind uses stderr without its header, which g++'s library brings anyway
}

# cross_definitions: CMake's definitions, one a line. liburing and OpenSSL are linked in; Debian's static libbpf and libelf
# cannot be linked into a module, so there is no XDP switch.
cross_definitions() {
    local lib=$DEPENDENCIES/lib include=$DEPENDENCIES/include
    [[ $ARCHITECTURE == "$(uname -m)" ]] || printf '%s\n' CMAKE_SYSTEM_NAME=Linux "CMAKE_SYSTEM_PROCESSOR=$ARCHITECTURE"
    printf '%s\n' OPENSSL_USE_STATIC_LIBS=ON "OPENSSL_ROOT_DIR=$DEPENDENCIES" "OPENSSL_INCLUDE_DIR=$include" \
        "OPENSSL_SSL_LIBRARY=$lib/libssl.a" "OPENSSL_CRYPTO_LIBRARY=$lib/libcrypto.a" "URING_INCLUDE_DIR=$include" \
        "URING_STATIC_LIBRARY=$lib/liburing.a" LUWU_XDP=OFF
}
