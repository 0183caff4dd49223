/* Are the values of a weight sound? A NaN or an infinity in one would make every logit a NaN, far
 * from there and without a name: a loader looks while the values are in the cache. Pure.
 */
#ifndef ESPALIER_WEIGHT_CHECK_H
#define ESPALIER_WEIGHT_CHECK_H

#include <stddef.h>

#include "safetensors.h"

/* What a tensor holds. */
enum weight_values {
    WEIGHT_VALUES,       /* finite */
    WEIGHT_SCALES,       /* and not negative */
    WEIGHT_BLOCK_SCALES, /* and leaving the largest code of FP8, 448, finite */
};

/* Which of the row's values is not sound; `count` where all are. Integers always are. */
size_t weight_check_row(enum tensor_dtype dtype, const void *row, size_t count,
                        enum weight_values values);

/* What was found and what is accepted, to follow "value [3, 5] ". */
const char *weight_check_words(enum weight_values values);

#endif
