#!/usr/bin/env bash
# Build bench_gpu for both architectures, as a program that needs a driver and nothing else: to be
# made here and run where a GPU is (run.sh). Needs nvcc, no GPU.
#
#   tests/gpu/build.sh BUILD OUT [cublaslt]
#
# BUILD is a configured and built tree, of any build type; better an optimised one, since the CPU's
# kernels come from it. OUT: where the program goes. `cublaslt`: it times products by cuBLASLt too,
# and then needs libcublasLt.so.13 where it runs, 540 MB.
set -eu -o pipefail
build=$(cd "${1:?usage: build.sh BUILD OUT [cublaslt]}" && pwd)
out=$(realpath -m "${2:?usage: build.sh BUILD OUT [cublaslt]}")
library=${3:-}
cd "$(dirname "$0")/../.."
command -v nvcc >/dev/null || { echo "build.sh: nvcc is not on PATH" >&2; exit 78; }
scratch=$(mktemp -d /tmp/espalier-nvcc-XXXXXX)
trap 'rm -rf "$scratch"' EXIT
include=$(dirname "$(command -v nvcc)")/../include
objects=()
for source in kernels/*/*_cuda_plan.c kernels/linear/linear_cublaslt.c tests/kernels/{rig,compare}.c tests/gpu/*.c \
    worker/{gpu,device_cuda,backend_cuda,comm_nccl,comm_p2p}.c; do
    case $source$library in
    tests/gpu/shared_bytes.c*) continue ;; # compile.sh's
    tests/gpu/no_cublaslt.ccublaslt) continue ;;
    esac
    object=$scratch/$(basename "$source").o
    cc -std=gnu11 -O2 -D_GNU_SOURCE -Ikernels -Iproto -Iworker -Itests/kernels -Itests/gpu \
        -isystem "$include" -c "$source" -o "$object"
    objects+=("$object")
done
for source in kernels/*/*_cuda.cu tests/gpu/*.cu; do
    object=$scratch/$(basename "$source").o
    nvcc -std=c++20 -O3 -fmad=false -gencode arch=compute_90a,code=sm_90a \
        -gencode arch=compute_120a,code=sm_120a -Ikernels -Itests/gpu -c "$source" -o "$object"
    objects+=("$object")
done
nvcc -cudart static -o "$out" "${objects[@]}" "$build"/worker/libespalier_{engine,weights}.a \
    "$build"/proto/libespalier_{wire,model,base}.a "$build/kernels/libespalier_kernels.a" \
    "$(cc -print-file-name=libjson-c.a)" -lpthread -lm ${library:+-lcublasLt}
