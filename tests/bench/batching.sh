#!/usr/bin/env bash
# What many calls cost each other, all of it: bench_batching in each of its modes, some minutes on a
# quiet machine.
#
#   tests/bench/batching.sh BUILD OUT.csv [MODE...]
#
# BUILD is an optimised tree (`--preset release`). `target` is `gap` again with --target-step-ms at
# half of what an isolated mixed step took in `gap`. Medians go to the terminal.
set -eu
bench=$(cd "${1:?usage: batching.sh BUILD OUT.csv [MODE...]}" && pwd)/tests/bench_batching
out=${2:?usage: batching.sh BUILD OUT.csv [MODE...]}
shift 2
[ $# -gt 0 ] || set -- gap target prefix pool idle

# run NAME ARGUMENTS...: NAME replaces the mode in the first column.
run() {
    local name=$1
    shift
    sed -i "/^$name,/d" "$out"
    "$bench" "$@" | tee >(grep -v '^#' | sed "s/^[a-z]*,/$name,/" >>"$out") | sed -n "s/^#/$name:/p"
}

[ -s "$out" ] || echo "mode,pair,figure,value" >"$out"
for mode in "$@"; do
    case "$mode" in
    gap | prefix) run "$mode" "$mode" 5 ;;
    target)
        step=$(sed -n 's/^gap,.*,isolated_step_ms,//p' "$out" | sort -n | sed -n 3p)
        run target gap 5 "$(awk -v step="$step" 'BEGIN { printf "%d", step / 2 }')"
        ;;
    pool) run pool pool 3 ;;
    idle) run idle idle 4 ;;
    *) echo "batching.sh: found '$mode', accepted: gap, target, prefix, pool, idle" >&2; exit 64 ;;
    esac
done
