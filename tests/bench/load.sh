#!/usr/bin/env bash
# How fast weights load: makes a checkpoint of 4 GB (kept for the next time), then bench_load.
#
#   tests/bench/load.sh [BUILD] [FOLDER] [bench_load's flags...]
#
# BUILD is build/release unless given, FOLDER build/load. Needs 4 GB of disk, 12 GB of memory, numpy,
# and a quiet machine; as root the page cache is dropped for certain.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$source/build/release}
folder=${2:-$source/build/load}
shift $(($# < 2 ? $# : 2))
[ -e "$folder/model.safetensors" ] ||
    python3 "$source/tests/bench/make_model.py" "$folder" --shape wide
exec "$build/tests/bench_load" "$folder" "$@"
