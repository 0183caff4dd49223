#!/bin/sh
# What docs/PERFORMANCE.md says of this machine: the roofs, the engine end to end, and the engine
# against llama.cpp in turns. Installs llama.cpp's Python package and gguf from PyPI into a
# virtual environment of its own, built for this processor, and makes its models; both are kept
# below build/peer and used again. An hour on two quiet cores; what else runs disturbs it.
#
#   tests/bench/peer.sh [PAIRS]      pairs a figure, 10 if not given
set -eu
pairs=${1:-10}
cd "$(dirname "$0")/../.."
bench=$PWD/tests/bench
work=$PWD/build/peer
mkdir -p "$work" "$bench/results"

cmake --preset release >"$work/cmake.log"
cmake --build --preset release --target bench_model >"$work/build.log"
program=$PWD/build/release/tests/bench_model

if ! [ -e "$work/venv/installed" ]; then
    echo "building llama.cpp; this takes a while"
    python3 -m venv "$work/venv"
    CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_OPENMP=ON -DLLAVA_BUILD=OFF" \
        nice -n 19 "$work/venv/bin/pip" install --quiet --no-binary llama-cpp-python \
        llama-cpp-python gguf numpy
    touch "$work/venv/installed"
fi
python=$work/venv/bin/python
for format in bf16 int4; do
    model=$work/mid-$format
    [ -e "$model/model.safetensors" ] || "$python" "$bench/make_model.py" "$model" --format $format
    [ -e "$model.gguf" ] || "$python" "$bench/peer_gguf.py" "$model" "$model.gguf"
done

machine=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1 |
    tr '[:upper:] ' '[:lower:]-' | tr -cd 'a-z0-9-')-$(nproc)cpu
csv=$bench/results/$machine.csv
rm -f "$csv" "$csv.peer"
echo "--- the engine alone; into $csv"
for format in bf16 int4; do
    for ranks in "--tp 1 --threads 1" "--tp 1 --threads 2" "--tp 2 --threads 1"; do
        echo "mid-$format"
        # shellcheck disable=SC2086 # two flags and their values
        "$program" "$work/mid-$format" $ranks --repeats 3 --csv "$csv"
    done
done
echo "--- the engine and llama.cpp in turns; into ${csv%.csv}-peer.csv"
for threads in 2 1; do
    for format in bf16 int4; do
        "$python" "$bench/peer.py" --bench "$program" --model "$work/mid-$format" \
            --gguf "$work/mid-$format.gguf" --state "$work/mid.state" --threads $threads \
            --pairs "$pairs" --csv "$csv.peer"
    done
done
mv "$csv.peer" "${csv%.csv}-peer.csv"
