#!/usr/bin/env bash
# Compile every GPU kernel for the two architectures and print what ptxas says of each: registers,
# spills, shared memory it declares itself. Fails where one does not compile without warnings; a
# spill is a warning. Then the host code, against CUDA's and NCCL's own headers. Needs nvcc, no GPU.
#
#   tests/gpu/compile.sh [FILE]     also writes the table to FILE, as Markdown
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 70
ARCHITECTURES="sm_90a sm_120a"
command -v nvcc >/dev/null || { echo "compile.sh: nvcc is not on PATH" >&2; exit 78; }
scratch=$(mktemp -d /tmp/espalier-nvcc-XXXXXX) || exit 70
trap 'rm -rf "$scratch"' EXIT

{
    echo "| kernel | architecture | registers | spilled bytes | shared bytes |"
    echo "|---|---|---|---|---|"
    for source in kernels/*/*_cuda.cu; do
        for architecture in $ARCHITECTURES; do
            if ! nvcc -std=c++20 -O3 -fmad=false -arch="$architecture" -Werror all-warnings -Xptxas -v,-warn-spills \
                -Ikernels -c "$source" -o "$scratch/object" >"$scratch/log" 2>&1; then
                grep -E "error|warning" "$scratch/log" >&2
                touch "$scratch/failed"
                continue
            fi
            # ptxas says of each kernel: its name, then spills, then registers and shared memory.
            c++filt <"$scratch/log" | awk -v architecture="$architecture" '
                /Compiling entry function/ {
                    name = $0
                    sub(/.*function .(void )?/, "", name)
                    sub(/\(.*/, "", name)
                    gsub(/u,/, ",", name)
                    gsub(/u>/, ">", name)
                }
                /spill stores/ { spilled = $5 + $9 }
                /Used [0-9]+ registers/ {
                    shared = 0
                    if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
                    match($0, /Used [0-9]+/)
                    registers = substr($0, RSTART + 5, RLENGTH - 5)
                    printf "| `%s` | %s | %d | %d | %d |\n", name, architecture, registers, spilled, shared
                }'
        done
    done
} | tee "${1:-/dev/null}"

# Host code that tests/simt runs over its own headers, over the real ones.
include=$(dirname "$(command -v nvcc)")/../include
for source in worker/gpu.c worker/*_nccl.c worker/*_cuda.c; do
    if [ ! -e "$include/nccl.h" ]; then
        echo "compile.sh: no nccl.h in $include: $source is not checked" >&2
    elif ! gcc -std=gnu11 -fsyntax-only -Wall -Wextra -Werror -D_GNU_SOURCE -Iworker -Iproto -Ikernels \
        -isystem "$include" "$source"; then
        touch "$scratch/failed"
    fi
done
[ ! -e "$scratch/failed" ]
