#!/usr/bin/env bash
# Build and test. On a fresh Debian 12 it first installs what is missing.
#
#   tests/run.sh          the dev build and every test; minutes on two cores
#   tests/run.sh --all    also clang, AddressSanitizer + UBSan, ThreadSanitizer, the long runs, and
#                         mistakes put into sources that tests must find; of those outside of the
#                         core a fifth, which one the commit says
#
# The last line is "N passed, N failed", behind the names of those that failed; the exit status is 0
# only if none did.
set -u
cd "$(dirname "$0")/.." || exit 70
. deploy/dependencies.sh

all=false
for argument in "$@"; do
    case "$argument" in
    --all) all=true ;;
    *) echo "tests/run.sh: '$argument' is not an option; accepted: --all" >&2; exit 64 ;;
    esac
done

# shellcheck disable=SC2086  # lists of package names are meant to be split
install_dependencies $BUILD_PACKAGES $TEST_PACKAGES || exit $?
if $all; then
    # shellcheck disable=SC2086
    install_dependencies $EXTENDED_TEST_PACKAGES || exit $?
fi

passed=0
failed=0
failures=() # a line each

# fail LINE
fail() {
    failed=$((failed + 1))
    failures+=("$1")
}

# build PRESET: configure and compile; a build that fails counts as one failed test.
build() {
    echo "== $1: build"
    if cmake --preset "$1" >"build/$1.log" 2>&1 && cmake --build --preset "$1" >>"build/$1.log" 2>&1
    then
        return 0
    fi
    tail -n 40 "build/$1.log"
    fail "$1: build"
    return 1
}

# run PRESET [ctest argument...]: every registered test of a build.
run() {
    local preset=$1
    shift
    echo "== $preset: test"
    ctest --test-dir "build/$preset" -j 2 --output-on-failure --no-tests=error "$@" |
        tee "build/$preset.tests"
    local summary total bad
    summary=$(grep -E 'tests? failed out of' "build/$preset.tests")
    total=$(sed -E 's/.* out of ([0-9]+).*/\1/' <<<"$summary")
    bad=$(sed -E 's/.*, ([0-9]+) tests? failed.*/\1/' <<<"$summary")
    if [ -z "$summary" ]; then
        fail "$preset: ctest"
        return
    fi
    passed=$((passed + total - bad))
    failed=$((failed + bad))
    mapfile -t -O "${#failures[@]}" failures < <(
        sed -nE "/^The following tests FAILED:/,\$ s/^\s*[0-9]+ - /$preset: /p" "build/$preset.tests")
}

# script NAME COMMAND...: one more test, passed where the command succeeds. Its last line says what
# failed.
script() {
    local name=$1
    shift
    echo "== $name"
    "$@" | tee "build/$name.log"
    if [ "${PIPESTATUS[0]}" -eq 0 ]; then
        passed=$((passed + 1))
        return
    fi
    fail "$name: $(tail -n 1 "build/$name.log")"
}

# commit_modulo N: a number below N that a commit always has and the next may not.
commit_modulo() {
    echo $((0x0$(git rev-parse --short=6 HEAD 2>/dev/null) % $1))
}

mkdir -p build
if $all; then
    build dev && ESPALIER_TEST_LONG=1 run dev -LE e2e && run dev -L e2e
    part=$(commit_modulo 5)/5
    script mutants tests/sim/mutants.sh build/dev
    script test-mutants tests/mutants.sh build/dev --part "$part"
    script kernel-mutants tests/simt/mutants.sh build/dev --part "$part"
    build release && run release -L e2e
    build clang
    # Of the emulator's schedules one: what a kernel touches, it touches under each.
    build asan && ESPALIER_SIMT_SCHEDULE=random run asan
    build tsan && run tsan -L threads
else
    build dev && run dev
fi

[ "$failed" -eq 0 ] || printf 'FAILED %s\n' "${failures[@]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
