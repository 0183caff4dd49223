#!/usr/bin/env bash
# A test of the kernels' tests: each mistake of mutants/OP.txt is made in a copy of a kernel of that
# op, compiled for the emulator, and run under one schedule after the other until one finds it,
# which is printed. The test is test_simt_OP, or test_simt_ops where an op has none of its own.
#
#   tests/simt/mutants.sh BUILD [--part K/N] [OP...]
#
# BUILD is a configured and built tree (Ninja), as of `cmake --preset dev`. --part: only every N-th
# mistake, from the K-th on, K below N. With ESPALIER_TEST_LONG every schedule is tried, and how many
# mistakes show under one alone is counted.
set -u
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:?usage: mutants.sh BUILD [--part K/N] [OP...]}" && pwd) || exit 64
shift
. "$source/tests/mutants_common.sh"
if [ "${1:-}" = --part ]; then
    take_part "${2:-}"
    shift 2
fi
SCHEDULES="round-robin greedy-warp random"
SECONDS_MAX=1800
TIMED_OUT=124

# finds PROGRAM SCHEDULE: it fails; its first failed check is enough. One that does not end finds
# nothing: the emulator names a deadlock, and who waits for memory waits by an emulated clock.
finds() {
    ESPALIER_SIMT_SCHEDULE=$2 timeout "$SECONDS_MAX" "$1" 2>&1 | grep -q -m 1 FAILED
    local status=${PIPESTATUS[0]}
    [ "$status" -ne 0 ] && [ "$status" -ne "$TIMED_OUT" ]
}

judge() {
    local schedule found=()
    for schedule in $SCHEDULES; do
        if finds "$1" "$schedule"; then found+=("$schedule"); fi
        if [ ${#found[@]} -gt 0 ] && [ -z "${ESPALIER_TEST_LONG:-}" ]; then break; fi
    done
    verdict="${found[*]}"
    [ ${#found[@]} -gt 0 ] || { verdict=MISSED; return 1; }
    if [ ${#found[@]} -eq 1 ]; then once=$((once + 1)); fi
}

[ $# -gt 0 ] || set -- $(basename -s .txt "$source"/tests/simt/mutants/*.txt)
all_caught=0 all_missed=0 all_once=0 all_names=""
for op in "$@"; do
    folder=kernels/$op
    target=test_simt_ops
    if [ -x "$build/tests/test_simt_$op" ]; then target=test_simt_$op; fi
    program=tests/$target
    echo "$op"
    try_all "$source/tests/simt/mutants/$op.txt"
    all_caught=$((all_caught + caught)) all_missed=$((all_missed + missed))
    all_once=$((all_once + once))
    if [ -n "$missed_names" ]; then all_names+=" $op:${missed_names# }"; fi
done
alone=""
if [ -n "${ESPALIER_TEST_LONG:-}" ]; then alone=" ($all_once under one schedule only)"; fi
echo "$all_caught mutants caught$alone, $all_missed not${all_names:+:$all_names}"
[ "$all_missed" -eq 0 ] && [ "$all_caught" -gt 0 ]
