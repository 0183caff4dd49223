#!/bin/sh
# Style as a test: what a reader would trip over and a machine can see. Prints each offence.
cd "$(dirname "$0")/.." || exit 70
export LC_ALL=C.UTF-8 # a column is a character, also in a picture
offences=$(mktemp)
trap 'rm -f "$offences"' EXIT

sources() {
    find kernels proto coordinator worker deploy tests \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) ! -path 'deploy/model-scripts/*'
}

# report MESSAGE: prefix each line of standard input with what is wrong with it.
report() {
    sed "s|^|$1: |" >>"$offences"
}

sources | xargs grep -nE '^.{101,}' | report 'longer than 100 columns'
sources | xargs grep -nE '[[:space:]]$' | report 'space at the end of the line'
sources | xargs grep -nE '\b(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atof|strtok|alloca|rand|system)\(' |
    report 'banned call'
sources | xargs grep -nE '\b(TODO|FIXME|XXX|HACK)\b' | report 'unfinished'
# exact.c compiles the references a second time, with our exp in place of the library's.
sources | grep -v '^tests/kernels/exact\.c$' | xargs grep -nE '^#include ".*\.c"' |
    report 'a test or module includes a .c file'
sources | grep '\.h$' | xargs grep -LE '^#ifndef ESPALIER_' | report 'header without its guard'

# Every module begins by saying what it is.
sources | grep '\.h$' | while read -r header; do
    head -n 1 "$header" | grep -q '^/\*' || echo "$header"
done | report 'header without a contract'

# Dependencies point one way.
grep -nE '#include "(base|core|text|shard|weights|engine)' -r kernels --include='*.[ch]' |
    report 'kernels depend on nothing'
grep -nE '#include <(uv|zmq)\.h>' -r coordinator/core coordinator/text --include='*.[ch]' |
    report 'the core knows no I/O library'
grep -nE '#include <zmq\.h>' -r coordinator worker deploy --include='*.[ch]' |
    report 'only proto touches a ZeroMQ socket'

# A stem names one module.
sources | grep '\.c$' | grep -v '^tests/' | sed 's|.*/||' | sort | uniq -d |
    grep -v '^main\.c$' | report 'two modules of one name'

if [ -s "$offences" ]; then
    cat "$offences"
    exit 1
fi
