/* CHECK: an invariant of our own code. On in release. A failed one prints the expression, its
 * place and a backtrace, and ends the process with exit code 70; it is never a way to answer bad
 * input. DCHECK is the same in debug builds only, for measured hot loops. */
#ifndef ESPALIER_CHECK_H
#define ESPALIER_CHECK_H

#define CHECK(condition)                                                                           \
    ((condition) ? (void)0 : check_failed(#condition, __FILE__, __LINE__, __func__))

#ifdef ESPALIER_DCHECK
#define DCHECK(condition) CHECK(condition)
#else
#define DCHECK(condition) ((void)sizeof(condition))
#endif

_Noreturn void check_failed(const char *expression, const char *file, int line, const char *func);

#endif
