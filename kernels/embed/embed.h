/* Rows of the embedding table: y[t,:] = table[id[t],:], and zero for an id outside this rank's
 * part of the vocabulary, so that the sum over ranks is the row. A negative zero in the table is
 * read as zero: x + 0 must not depend on who owns the row. Exact. */
#ifndef ESPALIER_EMBED_H
#define ESPALIER_EMBED_H

#include "kernel.h"

struct embed_args {
    const uint32_t *id; /* [T] token ids */
    const void *table;  /* [vocab_count, D] row-major: this rank's rows */
    enum kernel_dtype table_dtype;
    uint32_t vocab_begin; /* first id of the table */
    uint32_t vocab_count;
    float *y;      /* [T, D] */
    uint32_t rows; /* T */
    uint32_t dim;  /* D */
};

void embed_ref(const struct embed_args *args, struct kernel_ctx *ctx);
void embed_cpu(const struct embed_args *args, struct kernel_ctx *ctx);
void embed_cuda(const struct embed_args *args, struct kernel_ctx *ctx);

#endif
