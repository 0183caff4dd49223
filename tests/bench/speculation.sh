#!/usr/bin/env bash
# What guessing gives and costs on the clock, all of it: bench_speculation in each of its modes, a
# minute or two each on a quiet machine.
#
#   tests/bench/speculation.sh BUILD OUT.csv [MODE...]
#
# BUILD is an optimised tree (`--preset release`). Medians and signs go to the terminal.
set -eu
bench=$(cd "${1:?usage: speculation.sh BUILD OUT.csv [MODE...]}" && pwd)/tests/bench_speculation
out=${2:?usage: speculation.sh BUILD OUT.csv [MODE...]}
shift 2
[ $# -gt 0 ] || set -- chat context batch1 batch4 batch16 repeat

[ -s "$out" ] || echo "mode,pair,figure,value" >"$out"
for mode in "$@"; do
    lines=$("$bench" "$mode")
    sed -i "/^$mode,/d" "$out"
    grep -v '^#' <<<"$lines" >>"$out"
    sed -n "s/^#/$mode:/p" <<<"$lines"
done
