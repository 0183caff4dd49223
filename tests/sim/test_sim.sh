#!/usr/bin/env bash
# The simulator's own tests, by name:
#
#   test_sim.sh SIM seeds     2,000 seeds, or 20,000 with ESPALIER_TEST_LONG; all transitions reached
#   test_sim.sh SIM storm     10,000 calls cancelled, or 100,000 with ESPALIER_TEST_LONG
#   test_sim.sh SIM canary    deliberate mistakes of the simulated world are found
#   test_sim.sh SIM replay    what a journal holds replays to the same effects; damage is seen
#   test_sim.sh SIM journal   so does the journal of a coordinator with two workers, that of real ones
set -u
sim=$1
scratch=$(mktemp -d /tmp/espalier-sim-XXXXXX) || exit 70
trap 'rm -rf "$scratch"' EXIT
failures=0

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# expect STATUS PATTERN COMMAND...
expect() {
    local status=$1 pattern=$2 found
    shift 2
    "$@" >"$scratch/output" 2>&1
    found=$?
    if [ "$found" -ne "$status" ] || ! grep -qE "$pattern" "$scratch/output"; then
        fail "$* ended with $found, and must end with $status and say '$pattern':"
        tail -n 5 "$scratch/output"
    fi
}

case "$2" in
seeds)
    last=2000
    if [ -n "${ESPALIER_TEST_LONG:-}" ]; then last=20000; fi
    exec "$sim" --seeds "1..$last" --coverage
    ;;
storm)
    cancels=10000
    if [ -n "${ESPALIER_TEST_LONG:-}" ]; then cancels=100000; fi
    exec "$sim" --storm "$cancels"
    ;;
canary)
    expect 1 'token [0-9]+ is [0-9]+; alone it is' "$sim" --seeds 1..20 --canary token
    expect 1 'token [0-9]+ is [0-9]+; alone it is' "$sim" --seeds 1..20 --canary cache
    expect 1 'calls do not end|goes on' "$sim" --seeds 1..20 --canary end
    expect 1 'alone it is' "$sim" --seeds 1..20 --canary delta
    expect 1 'calls do not end' "$sim" --seeds 1..20 --canary stall
    expect 0 'seed 4: hash' "$sim" --seed 4
    ;;
replay)
    "$sim" --seeds 1..40 --journal "$scratch/journal" >/dev/null || fail "recording"
    expect 0 ' 0 differ$' "$sim" --replay "$scratch/journal"
    bytes=$(stat -c %s "$scratch/journal")

    head -c $((bytes - 5)) "$scratch/journal" >"$scratch/cut"
    expect 0 ' 0 differ$' "$sim" --replay "$scratch/cut"

    cp "$scratch/journal" "$scratch/flipped"
    printf '\377' | dd of="$scratch/flipped" bs=1 seek=$((bytes / 2)) conv=notrunc status=none
    expect 1 'record [0-9]+ of the journal' "$sim" --replay "$scratch/flipped"

    echo "no journal" >"$scratch/other"
    expect 64 'accepted: a journal' "$sim" --replay "$scratch/other"
    expect 64 'accepted: a file that can be written' "$sim" --seed 1 --journal /nonexistent/x

    # A full disk ends the journal and nothing else.
    expect 0 'event=journal_stopped .*No space left' "$sim" --seed 4 --journal /dev/full
    ;;
journal)
    bin=$(dirname "$sim")
    "$bin/espalier" serve --tp 2 --run-dir "$scratch/run" --journal "$scratch/journal" \
        >"$scratch/serve" 2>&1 &
    serve=$!
    for ((try = 0; try < 100; try++)); do
        "$bin/espalier" probe --run-dir "$scratch/run" >/dev/null 2>&1 && break
        sleep 0.2
    done
    for prompt in "The castle of Otranto" "The castle of Otranto, again" "A line of C"; do
        expect 0 . "$bin/espalier" generate --run-dir "$scratch/run" --tokens 16 "$prompt"
    done
    kill -INT "$serve"
    wait "$serve" || { fail "serve ended with $?"; tail -n 5 "$scratch/serve"; }
    expect 0 '^[1-9][0-9]+ events, [1-9][0-9]+ effects compared, 0 differ$' \
        "$sim" --replay "$scratch/journal"
    ;;
esac
[ "$failures" -eq 0 ]
