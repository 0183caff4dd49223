#!/usr/bin/env bash
# From a fresh Debian 12 to generated text: installs what is missing, builds, starts a coordinator
# and workers on the CPU with the embedded model, streams a completion, stops, leaves nothing.
#
#   deploy/quickstart.sh [--tp N] [--prompt TEXT] [--tokens N] [--keep]
#
#   --tp N         workers: 1, 2, 4 or 8 (default 2)
#   --prompt TEXT  what to complete
#   --tokens N     how much of it (default 64)
#   --keep         leave the group running, and say how to reach and stop it
set -u
cd "$(dirname "$0")/.." || exit 70
. deploy/dependencies.sh

tp=2
prompt="Python is a programming language that"
tokens=64
keep=false

usage() {
    echo "quickstart.sh: $1; accepted: --tp 1|2|4|8, --prompt TEXT, --tokens N, --keep" >&2
    exit 64
}

while [ $# -gt 0 ]; do
    case "$1" in
    --help | -h) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' deploy/quickstart.sh; exit 0 ;;
    --keep) keep=true ;;
    --tp | --prompt | --tokens)
        [ $# -ge 2 ] || usage "$1: found no value"
        case "$1" in
        --tp) tp=$2 ;;
        --prompt) prompt=$2 ;;
        --tokens) tokens=$2 ;;
        esac
        shift
        ;;
    *) usage "found \"$1\"" ;;
    esac
    shift
done
case "$tp" in 1 | 2 | 4 | 8) ;; *) usage "--tp: found \"$tp\"" ;; esac
case "$tokens" in '' | *[!0-9]* | 0) usage "--tokens: found \"$tokens\"" ;; esac
[ -n "$prompt" ] || usage "--prompt: found an empty text"

# shellcheck disable=SC2086  # a list of package names is meant to be split
install_dependencies $BUILD_PACKAGES || exit $?

echo "== build (build/release, log in build/release.log)"
mkdir -p build
if ! { cmake --preset release && cmake --build --preset release --target espalier; } \
    >build/release.log 2>&1; then
    tail -n 40 build/release.log >&2
    exit 70
fi
espalier=build/release/bin/espalier

run_dir=$(mktemp -d /tmp/espalier-quickstart-XXXXXX) || exit 75
log=$run_dir.log
group=

# Whatever happens, the group ends with this script, and what it used is removed.
finish() {
    trap '' INT TERM HUP
    if [ -n "$group" ]; then
        kill -TERM "$group" 2>/dev/null
        wait "$group" 2>/dev/null
    fi
    rm -rf "$run_dir" "$log"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

echo "== start a coordinator and $tp workers"
# A group of its own: a Ctrl-C meant for this script must not drain what --keep leaves running.
setsid "$espalier" serve --model-path "$PWD/deploy/model" --tp "$tp" --run-dir "$run_dir" \
    >"$log" 2>&1 &
group=$!
until "$espalier" probe --run-dir "$run_dir" >/dev/null 2>&1; do
    if ! kill -0 "$group" 2>/dev/null; then
        wait "$group"
        code=$?
        group=
        cat "$log" >&2
        exit "$code"
    fi
    sleep 0.1
done
"$espalier" status --run-dir "$run_dir" | sed -n 1p

echo "== complete: $prompt"
"$espalier" generate --run-dir "$run_dir" --tokens "$tokens" --stats -- "$prompt" || exit $?
# What was guessed, and how much of it was right.
"$espalier" status --run-dir "$run_dir" | grep -E '^guessing|tokens a tree|right by source'

if $keep; then
    trap - EXIT
    echo "== kept running:"
    echo "   $espalier generate --run-dir $run_dir \"...\""
    echo "   $espalier drain --run-dir $run_dir && rm -r $run_dir $log"
    exit 0
fi

echo "== stop"
kill -TERM "$group"
wait "$group"
code=$?
group=
if [ "$code" -ne 0 ]; then
    cat "$log" >&2
    exit "$code"
fi

# Nothing may be left: no process, no socket, no shared memory.
left=$(ls -A "$run_dir"; grep -lzF -- "$run_dir" /proc/[0-9]*/cmdline 2>/dev/null)
left+=$(find /dev/shm -maxdepth 1 -name '*espalier*' 2>/dev/null)
if [ -n "$left" ]; then
    echo "quickstart.sh: left behind: $left" >&2
    exit 70
fi
echo "done: nothing is left running"
