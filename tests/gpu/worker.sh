#!/usr/bin/env bash
# Build the worker with the CUDA back end, for both architectures, and start it where it sees no
# GPU: it must say so in one line and end with exit code 78. Needs nvcc and NCCL, no GPU; takes
# minutes, so it is skipped unless ESPALIER_TEST_LONG is set.
#
#   tests/gpu/worker.sh BUILD     BUILD: the folder to build in
set -u -o pipefail
build=${1:?usage: worker.sh BUILD}
cd "$(dirname "$0")/../.." || exit 70
[ -n "${ESPALIER_TEST_LONG:-}" ] || { echo "worker.sh: skipped without ESPALIER_TEST_LONG" >&2; exit 78; }
command -v nvcc >/dev/null || { echo "worker.sh: nvcc is not on PATH" >&2; exit 78; }
[ -e "$(dirname "$(command -v nvcc)")/../include/nccl.h" ] || { echo "worker.sh: no nccl.h" >&2; exit 78; }
cmake -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DESPALIER_CUDA=ON >"$build.log" 2>&1 &&
    cmake --build "$build" --target espalier-worker >>"$build.log" 2>&1 || {
    grep -E "error|warning|undefined" "$build.log" >&2
    echo "worker.sh: it does not build; see $build.log" >&2
    exit 1
}
said=$(CUDA_VISIBLE_DEVICES='' "$build/bin/espalier-worker" --model-path deploy/model --device cuda 2>&1)
code=$?
echo "$said"
[ "$code" = 78 ] && [ "$(echo "$said" | wc -l)" = 1 ] && [[ $said == "espalier-worker: --device cuda: found no "* ]]
