#!/usr/bin/env bash
# Everything a GPU is asked, in a few minutes: do the kernels compute what the CPU's do, does
# compute-sanitizer find nothing in them, and how near the roof do they run?
#
#   tests/gpu/run.sh BENCH [OUT] [tiny]
#
# BENCH is the program that build.sh made. Writes OUT/gpu.csv and OUT/gpu.md. Fails where a kernel
# differs, where a tool finds something, and where memory gives less than 85 % of what this kind of
# GPU has: then the figures mean nothing. `tiny`: shapes for the emulator (simt_bench_gpu).
set -u -o pipefail
bench=${1:?usage: run.sh BENCH [OUT] [tiny]}
out=${2:-.}
tiny=${3:-}

# GB/s of the kinds that have been thought of; others are measured, and not judged.
case "$([ -n "$tiny" ] || nvidia-smi --query-gpu=name --format=csv,noheader -i 0 2>/dev/null)" in
*H200*) nominal=4800 ;;
*H100*) nominal=3350 ;;
*'RTX PRO 6000'*) nominal=1792 ;;
*) nominal=0 ;;
esac

failed=0
"$bench" check $tiny || failed=1
if [ -z "$tiny" ] && command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck; do
        compute-sanitizer --tool "$tool" --error-exitcode 1 "$bench" check tiny >"$out/$tool.log" 2>&1 ||
            { echo "run.sh: $tool: $(grep -m 1 '=====.*rror' "$out/$tool.log")" >&2; failed=1; }
    done
fi
"$bench" time $((nominal * 85 / 100)) $tiny >"$out/gpu.csv" || failed=1
awk -F, '
    NR == 1 { rule = $0; gsub(/[^,]+/, "---", rule); gsub(/,/, " | ", rule) }
    { line = $0; gsub(/,/, " | ", line); print "| " line " |" }
    NR == 1 { print "| " rule " |" }' "$out/gpu.csv" | tee "$out/gpu.md"
exit $failed
