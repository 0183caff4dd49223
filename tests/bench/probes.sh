#!/usr/bin/env bash
# Ten minutes of mixed faults under probes that ask ten times a second: how long a right answer takes
# after each kind of change, what a reply costs, and that none is false (tests/e2e/test_e2e_probes.c).
#
#   tests/bench/probes.sh [BUILD] [SECONDS]
#
# BUILD is build/release unless given. A wrong answer, or a right one that takes longer than a second,
# ends it with failure.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$source/build/release}
ESPALIER_PROBES_SECONDS=${2:-600} exec "$build/tests/test_e2e_probes"
