# Debian packages that building Espalier needs; sourced by quickstart.sh and tests/run.sh.
#
#   install_dependencies package...     installs those that are missing, and says which

BUILD_PACKAGES="gcc libc6-dev cmake ninja-build pkg-config libuv1-dev libzmq3-dev libprotobuf-c-dev
protobuf-c-compiler libjson-c-dev libpcre2-dev libhttp-parser-dev"
TEST_PACKAGES="libcmocka-dev g++"
EXTENDED_TEST_PACKAGES="clang libclang-rt-14-dev clang-format python3-yaml python3-jsonschema iproute2"
# What built programs need where they run.
RUNTIME_PACKAGES="libuv1 libzmq5 libprotobuf-c1 libjson-c5 libpcre2-8-0 libhttp-parser2.9"

is_installed() {
    dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'
}

install_dependencies() {
    local missing=() package
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    echo "installing Debian packages: ${missing[*]}"
    local root=""
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "error: not root and no sudo; install by hand: ${missing[*]}" >&2
            return 77
        fi
        root=sudo
    fi
    $root apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq --no-install-recommends \
            "${missing[@]}" >/dev/null || {
        echo "error: apt-get could not install: ${missing[*]}" >&2
        return 75
    }
}
