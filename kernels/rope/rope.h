/* Rotary position embedding (Su et al., "RoFormer", 2021, section 3.4.2) of pairs (a, b):
 *
 *     (a, b) -> (a c - b s,  a s + b c)      interleaved: a, b = x[2i], x[2i+1]
 *                                            halves:      a, b = x[i],  x[P/2 + i]
 *
 * with c, s = cos, sin of position * inv_freq[i], computed in double and rounded to f32 once. Two
 * products and one sum each, not fused: exact on every instruction set. Angles are libm's: where
 * two libms differ by a unit of double, one value in about 2^28 rounds to another f32. */
#ifndef ESPALIER_ROPE_H
#define ESPALIER_ROPE_H

#include <stdbool.h>

#include "kernel.h"

struct rope_args {
    float *x;             /* [T, heads, P] in place */
    size_t row_stride;    /* floats from row to row */
    size_t head_stride;   /* floats from head to head */
    const float *cos_sin; /* [T, P]: P/2 cosines, then P/2 sines (rope_angles) */
    uint32_t rows;        /* T */
    uint32_t heads;
    uint32_t dim; /* P, even */
    bool halves;
};

/* Fill cos_sin for the positions of a step; once a step, shared by all layers. */
void rope_angles(float *cos_sin, const uint32_t *position, uint32_t rows, const double *inv_freq,
                 uint32_t dim);

void rope_ref(const struct rope_args *args, struct kernel_ctx *ctx);
void rope_cpu(const struct rope_args *args, struct kernel_ctx *ctx);
void rope_cuda(const struct rope_args *args, struct kernel_ctx *ctx);

#endif
