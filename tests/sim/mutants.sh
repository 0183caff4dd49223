#!/usr/bin/env bash
# A test of the tests: each mistake of mutants.txt is made in a copy of one source file of the core,
# compiled, linked in front of the library, and run. The simulator must find every one of them.
#
#   tests/sim/mutants.sh BUILD [NAME...]
#
# BUILD is a configured and built tree (Ninja), as of `cmake --preset dev`.
set -u
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:?usage: mutants.sh BUILD [NAME...]}" && pwd) || exit 64
shift
. "$source/tests/mutants_common.sh"
SEEDS=1..2000
SECONDS_MAX=120
folder=coordinator/core
target=espalier_core
program=bin/sim

judge() {
    local output status
    output=$(timeout "$SECONDS_MAX" "$1" --seeds "$SEEDS" 2>&1)
    status=$?
    verdict=$(grep -E -m 1 '^sim: ' <<<"$output" | cut -c 1-120)
    verdict=${verdict:-it ends with status $status}
    [ "$status" -ne 0 ] || { verdict="MISSED in seeds $SEEDS"; return 1; }
}

try_all "$source/tests/sim/mutants.txt" "$@"
echo "$caught mutants caught, $missed not${missed_names:+:$missed_names}"
[ "$missed" -eq 0 ]
