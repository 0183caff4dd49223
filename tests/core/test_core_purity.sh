#!/bin/sh
# The core is a function: this looks at what its object files ask the outside world for.
#
#   test_core_purity.sh LIBRARY SOURCE_FOLDER
#
# Every undefined symbol must be the core's own, one of the pure helpers below, or, for core_create
# and core_destroy alone, a taker of memory. No object may keep writable data of its own, and no
# source may include a header outside the list. Exit 0: pure.
set -eu
library=$1
source=$2
faults=0

fault() {
    echo "not pure: $*"
    faults=$((faults + 1))
}

# Pure by their contracts, or the compiler's and the sanitizers' own.
is_pure() {
    case $1 in
    memcpy | memmove | memset | memcmp | strlen | strcmp | strncmp | snprintf | vsnprintf) ;;
    __memcpy_chk | __memset_chk | __snprintf_chk | __vsnprintf_chk) ;;
    check_failed | error_set | status_name | self_test_name | step_state_hash | hash_bytes) ;;
    arena_alloc | arena_calloc | arena_reset | arena_resize | arena_init_at) ;;
    histogram_take | histogram_add | histogram_count | histogram_bound_ns) ;;
    log_limit_pass) ;;
    pool_acquire | pool_release | pool_is_live | pool_id_equal | pool_next_used) ;;
    expf | tree_* | channel_* | detok_* | stop_set_* | stop_scan_* | vocab_size) ;;
    __stack_chk_fail | __popcountdi2 | _GLOBAL_OFFSET_TABLE_) ;;
    __asan_* | __ubsan_* | __tsan_* | __sanitizer_* | __gcov_*) ;;
    *) return 1 ;;
    esac
}

# Memory is taken at create: where, and by whom.
takes_memory() {
    case $1 in
    core.c.o:calloc | core.c.o:free | core.c.o:arena_init | core.c.o:arena_deinit) ;;
    request.c.o:pool_init | request.c.o:pool_deinit) ;;
    choices.c.o:pool_init | choices.c.o:pool_deinit) ;;
    *) return 1 ;;
    esac
}

own=$(nm --defined-only --format=posix "$library" | awk 'NF > 2 && $2 ~ /[A-Z]/ { print $1 }')
[ -n "$own" ] || fault "no symbols in $library"
undefined=$(nm -u --format=posix "$library" |
    awk '/:$/ { sub(/.*\[/, ""); sub(/\]:$/, ""); object = $0; next } NF { print object ":" $1 }')
for use in $undefined; do
    symbol=${use#*:}
    is_pure "$symbol" && continue
    takes_memory "$use" && continue
    printf '%s\n' "$own" | grep -qxF "$symbol" && continue
    fault "${use%%:*} uses $symbol"
done

written=$(objdump -t "$library" |
    awk -F '\t' '$1 ~ / O \.(data|bss)$/ { sub(/^[0-9a-f]+ /, "", $2); print $2 }' |
    grep -v '^__\|^\.' || true)
for name in $written; do
    fault "$name is writable data outside struct core"
done

for header in $(cat "$source"/*.c "$source"/*.h | sed -n 's/^#include <\(.*\)>.*/\1/p' | sort -u); do
    case $header in
    math.h | stdarg.h | stdbool.h | stddef.h | stdint.h | stdio.h | stdlib.h | string.h) ;;
    *) fault "a source includes <$header>" ;;
    esac
done
for header in $(cat "$source"/*.c "$source"/*.h | sed -n 's/^#include "\(.*\)".*/\1/p' | sort -u); do
    case $header in
    base/arena.h | base/bytes.h | base/check.h | base/hash.h | base/histogram.h) ;;
    base/limits.h | base/log.h | base/log_limit.h | base/pool.h) ;;
    message.h | model_spec.h | tree.h | text/*) ;;
    *) [ -f "$source/$header" ] || fault "a source includes \"$header\"" ;;
    esac
done
grep -l 'stdlib.h' "$source"/*.c | grep -v '/core\.c$' && fault "stdlib.h outside core.c"

[ "$faults" -eq 0 ] && echo "pure: $(printf '%s\n' "$undefined" | wc -l) uses of outside symbols"
[ "$faults" -eq 0 ]
