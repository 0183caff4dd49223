#!/usr/bin/env bash
# Compile every GPU kernel for the two architectures and print what ptxas says of each: registers,
# spills, and shared memory, which is what a plan asks for at launch where shared_bytes.c knows it.
# Fails where one does not compile without warnings, where one spills, where products of warpgroups
# are made to wait for each other, and where the table is not the kept one, docs/kernels/compiled.md,
# if that is of the same nvcc. Then the host code, against CUDA's and NCCL's own headers. Needs nvcc,
# no GPU.
#
#   tests/gpu/compile.sh [FILE]     writes the table to FILE, instead of comparing it
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 70
ARCHITECTURES="sm_90a sm_120a"
KEPT=docs/kernels/compiled.md
command -v nvcc >/dev/null || { echo "compile.sh: nvcc is not on PATH" >&2; exit 78; }
scratch=$(mktemp -d /tmp/espalier-nvcc-XXXXXX) || exit 70
trap 'rm -rf "$scratch"' EXIT
fail() { echo "compile.sh: $*" >&2; touch "$scratch/failed"; }

cc -std=gnu11 -Wall -Werror -Ikernels -o "$scratch/shared_bytes" tests/gpu/shared_bytes.c &&
    "$scratch/shared_bytes" >"$scratch/shared" || fail "shared_bytes.c does not run"

# table LOG ARCHITECTURE: ptxas says of each kernel its name, then spills, then registers and shared
# memory.
table() {
    c++filt <"$1" | sed -E 's/\(linear_format\)1/BF16/g; s/\(linear_format\)2/INT4/g; s/\(linear_format\)3/FP8/g
        s/\(kernel_dtype\)1/BF16/g; s/\(kernel_dtype\)3/FP8/g
        s/, true>/, down>/; s/, false>/, gate, up>/; s/([0-9])u([,>])/\1\2/g' |
        awk -v architecture="$2" '
            FNR == NR { split($0, field, "|"); asked[field[1]] = field[2]; next }
            /Compiling entry function/ {
                name = $0
                sub(/.*function .(void )?/, "", name)
                sub(/\(.*/, "", name)
            }
            /spill stores/ { spilled = $5 + $9 }
            /Used [0-9]+ registers/ {
                shared = asked[name] + 0
                if (match($0, /[0-9]+ bytes smem/)) shared += substr($0, RSTART, RLENGTH)
                match($0, /Used [0-9]+/)
                registers = substr($0, RSTART + 5, RLENGTH - 5)
                printf "| `%s` | %s | %d | %d | %d |\n", name, architecture, registers, spilled, shared
            }' "$scratch/shared" -
}

{
    echo "# What the GPU kernels take"
    echo
    echo "Made by \`tests/gpu/compile.sh docs/kernels/compiled.md\`, with nvcc $(nvcc --version | sed -n 's/.*, V//p')."
    echo "Shared bytes: of a block, where its size is a matter of a plan."
    echo
    echo "| kernel | architecture | registers | spilled bytes | shared bytes |"
    echo "|---|---|---|---|---|"
    for source in kernels/*/*_cuda.cu; do
        for architecture in $ARCHITECTURES; do
            if nvcc -std=c++20 -O3 -fmad=false -arch="$architecture" -Werror all-warnings -Xptxas -v,-warn-spills \
                -Ikernels -c "$source" -o "$scratch/object" >"$scratch/log" 2>&1; then
                table "$scratch/log" "$architecture"
                if grep -m 1 "Potential Performance Loss" "$scratch/log" >&2; then fail "$source for $architecture"; fi
            else
                fail "$source for $architecture: $(grep -m 1 -E "error|warning" "$scratch/log")"
            fi
        done
    done
} | tee "$scratch/table"

while IFS='|' read -r _ name architecture _ spilled _; do
    case "$spilled" in *[1-9]*) fail "$name spills on $architecture" ;; esac
done <"$scratch/table"
if [ $# -gt 0 ]; then
    cp "$scratch/table" "$1"
elif [ "$(grep nvcc "$KEPT")" != "$(grep nvcc "$scratch/table")" ]; then
    echo "compile.sh: $KEPT is of another nvcc: not compared" >&2
elif ! diff "$KEPT" "$scratch/table" >&2; then
    fail "the table has changed: see what has, then compile.sh $KEPT"
fi

# Host code that tests/simt runs over its own headers, over the real ones.
include=$(dirname "$(command -v nvcc)")/../include
for source in worker/gpu.c worker/*_nccl.c worker/*_p2p.c worker/*_cuda.c kernels/*/*_cublaslt.c tests/gpu/no_*.c; do
    if [ ! -e "$include/nccl.h" ]; then
        echo "compile.sh: no nccl.h in $include: $source is not checked" >&2
    elif ! gcc -std=gnu11 -fsyntax-only -Wall -Wextra -Werror -D_GNU_SOURCE -Iworker -Iproto -Ikernels \
        -isystem "$include" "$source"; then
        fail "$source does not compile over CUDA's headers"
    fi
done
[ ! -e "$scratch/failed" ]
