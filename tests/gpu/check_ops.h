/* Every op's GPU variant against its reference, over the cases of tests/kernels. */
#ifndef ESPALIER_CHECK_OPS_H
#define ESPALIER_CHECK_OPS_H

#include <stdbool.h>

#include "kernel.h"

/* A line an op, and one for each case that differs, on standard output as bench_gpu's check writes
 * them. is_whole: also at shapes of Kimi K2.6 on one of eight ranks. False where one differs. */
bool check_ops(struct kernel_ctx *ctx, bool is_whole);

#endif
