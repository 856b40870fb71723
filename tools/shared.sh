# shellcheck shell=bash
# What the scripts here share: finding Python, installing system packages, compiling and doing things once.

readonly STATE=build/setup # logs, the lock, and what was tried in vain
readonly USABLE_PYTHON='
import ensurepip, os, sys, sysconfig, venv
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(not ((3, 10) <= sys.version_info[:2] < (3, 14) and os.path.exists(headers)))
'

say() { echo "$(basename "$0" .sh): $*" >&2; }

fail() {
    say "$*"
    exit 1
}

# The core is compiled for the Python module and again for the native tests: with ccache, and the same name for the
# compiler, once. Sources have absolute names, so that the build's folder does not matter to the lines that are kept.
compile_once() {
    export CXX=${CXX:-c++} CCACHE_NOHASHDIR=true
    if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
}

# Succeeds where clang++ can link sanitizers and libFuzzer.
has_clang_runtime() {
    command -v clang++ >/dev/null && compgen -G "$(clang++ -print-runtime-dir)/libclang_rt.fuzzer*.a" >/dev/null
}

# Two makes at once take turns.
take_turn() {
    mkdir -p "$STATE"
    exec 9>"$STATE/lock"
    flock 9
}

# Prints the first Python that can build LuWu: version in range, with venv and the C headers.
find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        if "$candidate" -c "$USABLE_PYTHON" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# Runs apt-get as root, directly or through a sudo that asks for no password.
apt_get_as_root() {
    local sudo=()
    [[ $EUID -eq 0 ]] || sudo=(sudo -n)
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@" </dev/null >>"$STATE/apt.log" 2>&1
}

may_install_system_packages() {
    command -v apt-get >/dev/null && { [[ $EUID -eq 0 ]] || sudo -n true 2>/dev/null; }
}

# Installs the packages that the given function lists, where this user may, and says so where not. Asks only once:
# what was tried in vain is not tried again before `make clean`.
install_system_packages() {
    local list_missing=$1 tried=$STATE/tried-$1 missing
    mapfile -t missing < <("$list_missing")
    if [[ ${#missing[@]} -eq 0 || (-e $tried && $(<"$tried") == "${missing[*]}") ]]; then
        return 0
    fi
    if ! may_install_system_packages; then
        say "these system packages are missing, and this user may not install them: ${missing[*]}"
    else
        say "installing system packages, a minute or two; apt's words are in $STATE/apt.log: ${missing[*]}"
        apt_get_as_root install -y --no-install-recommends "${missing[@]}" ||
            { apt_get_as_root update && apt_get_as_root install -y --no-install-recommends "${missing[@]}"; } ||
            say "apt-get failed: see $STATE/apt.log"
    fi
    mapfile -t missing < <("$list_missing")
    echo "${missing[*]}" >"$tried"
}

# make_environment FOLDER
make_environment() {
    local python
    [[ -x $1/bin/python ]] && return 0
    python=$(find_python) || fail "Python 3.10 to 3.13 with venv and C headers is needed (python3-venv, python3-dev)"
    say "making $1 with $("$python" --version): some seconds"
    "$python" -m venv "$1"
}

# pip_install FOLDER ARGUMENT...: only errors are shown
pip_install() {
    "$1/bin/python" -m pip install -qq --disable-pip-version-check "${@:2}"
}

# Prints one hash of files and whole folders.
hash_of() { find "$@" -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum; }

# once_for FOLDER NAME INPUT COMMAND...: runs the command unless it succeeded before, in this environment and for the
# same input.
once_for() {
    local stamp=$1/luwu-$2.stamp input=$3
    [[ -e $stamp && $(<"$stamp") == "$input" ]] && return 0
    rm -f "$stamp"
    "${@:4}"
    echo "$input" >"$stamp"
}
