/* INT4 weights times INT8 activations: linear_tile.h's inner product in integers.
 *
 * A panel's 64 bytes hold four inputs of 32 outputs, a nibble each, so that the low and the high
 * nibbles are two vectors of bytes as they lie there: sixteen outputs, four neighbouring bytes of
 * one output each. AVX-512 VNNI adds the products of four unsigned with four signed bytes in one
 * instruction; the other sets do it in three. Nibbles are weights + 8, which eight times the sum of
 * the activations takes off again. Integers know no order: nothing here has to be agreed on.
 */
#ifndef ESPALIER_LINEAR_INT8_H
#define ESPALIER_LINEAR_INT8_H

#include "linear/linear.h"

struct linear_int8_group {
    int8_t value[LINEAR_CHUNK]; /* each four in the order of packed INT4: inputs 0, 2, 1, 3 */
    float scale;
    int32_t offset; /* -8 * sum of the values */
};

#ifdef KERNEL_ISA
#include "linear/linear_tile.h"

#define linear_int8_round ISA_SYMBOL(linear_int8_round)
void linear_int8_round(struct linear_int8_group *out, const float x[LINEAR_CHUNK]);

/* As linear_tile_dot; the rows of x are groups. */
#define linear_int8_dot ISA_SYMBOL(linear_int8_dot)
void linear_int8_dot(struct linear_tile *tile, const struct linear_weight *weight,
                     uint32_t panel_begin, uint32_t panel_count, uint32_t segments,
                     const struct linear_rows *x);
#endif

#endif
