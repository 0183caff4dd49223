#!/usr/bin/env bash
# A test of the tests, file by file: each mistake of mutants.txt is made in a copy of one source
# file, compiled, linked in front of the libraries of the test that the line names, and that test
# must fail. Among them are the mistakes that others' draft trees were published with. What the
# simulator must find has a list of its own (sim/mutants.sh), and so have GPU kernels
# (simt/mutants.sh).
#
#   tests/mutants.sh BUILD [--part K/N] [NAME...]
#
# BUILD is a configured and built tree (Ninja), as of `cmake --preset dev`. --part: only every N-th
# mistake, from the K-th on, K below N.
set -u
source=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:?usage: mutants.sh BUILD [--part K/N] [NAME...]}" && pwd) || exit 64
shift
. "$source/tests/mutants_common.sh"
if [ "${1:-}" = --part ]; then
    take_part "${2:-}"
    shift 2
fi
SECONDS_MAX=120

judge() {
    local output status
    output=$(timeout "$SECONDS_MAX" "$1" $arguments 2>&1)
    status=$?
    verdict=$(grep -E -m 1 '^\[  FAILED  \] [a-z]|: token [0-9]+: |CHECK' <<<"$output" | cut -c 1-100)
    verdict="$target: ${verdict:-it ends with status $status}"
    [ "$status" -ne 0 ] || { verdict="MISSED by $target"; return 1; }
}

try_all "$source/tests/mutants.txt" "$@"
echo "$caught mutants caught, $missed not${missed_names:+:$missed_names}"
[ "$missed" -eq 0 ]
